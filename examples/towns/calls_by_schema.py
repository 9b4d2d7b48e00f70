"""Tool calls for a small model behind llama.cpp: python calls_by_schema.py PORT UPSTREAM[,UPSTREAM...]

Small models write calls that the parser of their server does not recognise. This server takes Chat Completions
requests with `tools` and `tool_choice: required`, asks the model for JSON under a schema of those tools, and answers
with `tool_calls`. Requests without a required call pass as they are. Not streamed.
"""

import itertools
import json
import sys

import aiohttp
from aiohttp import web

numbers, turns = itertools.count(1), itertools.count()


def plain(messages):
    """The history without tool calls, in words that a small model understands."""
    for message in messages:
        if message["role"] == "tool":
            yield {"role": "user", "content": f"Result: {message['content']}"}
        elif message.get("tool_calls"):
            functions = [call["function"] for call in message["tool_calls"]]
            said = [f"{f['name']}({', '.join(map(str, json.loads(f['arguments']).values()))})" for f in functions]
            yield {"role": "assistant", "content": f"{message.get('content') or ''} I call {' and '.join(said)}."}
        else:
            yield dict(message)


def described(functions):
    lines = [f"- {f['name']}({', '.join(f['parameters']['properties'])}): {f['description']}" for f in functions]
    return (
        "\n\nTools:\n" + "\n".join(lines) + "\nReply with JSON: a thought of at most ten words that says what you do "
        "next and why, and the calls."
    )


def one_call(function):
    fields = function["parameters"]["properties"]
    kinds = {name: {"type": field.get("type", "string")} for name, field in fields.items()}
    arguments = {"type": "object", "properties": kinds, "required": list(kinds), "additionalProperties": False}
    both = {"name": {"const": function["name"]}, "arguments": arguments}
    return {"type": "object", "properties": both, "required": list(both), "additionalProperties": False}


async def chat(request):
    body = await request.json()
    functions = [tool["function"] for tool in body.get("tools") or ()]
    forced = bool(functions) and body.get("tool_choice") == "required"
    asked = {name: body[name] for name in ("model", "temperature", "max_tokens", "seed") if name in body}
    asked["messages"] = list(plain(body["messages"]))
    if forced:
        asked["messages"][0]["content"] += described(functions)
        calls = {"type": "array", "minItems": 1, "maxItems": 1, "items": {"anyOf": list(map(one_call, functions))}}
        fields = {"thought": {"type": "string"}, "calls": calls}
        schema = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
        asked["response_format"] = {"type": "json_schema", "json_schema": {"name": "calls", "schema": schema}}
    upstream = request.app["upstreams"][next(turns) % len(request.app["upstreams"])]
    async with request.app["session"].post(f"{upstream}/chat/completions", json=asked) as response:
        answer, status = await response.json(), response.status
    if forced and status == 200:
        choice = answer["choices"][0]
        try:
            said = json.loads(choice["message"]["content"])
        except ValueError:
            return web.json_response(answer)  # cut off by max_tokens: the team sees the text
        made = [
            {
                "id": f"call_{next(numbers)}",
                "type": "function",
                "function": {"name": call["name"], "arguments": json.dumps(call["arguments"])},
            }
            for call in said["calls"]
        ]
        choice["message"] |= {"content": said["thought"] or None, "tool_calls": made}
        choice["finish_reason"] = "tool_calls"
    return web.json_response(answer, status=status)


async def session(app):
    app["session"] = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=900))
    yield
    await app["session"].close()


if __name__ == "__main__":
    app = web.Application(client_max_size=1 << 26)
    app["upstreams"] = sys.argv[2].split(",")
    app.cleanup_ctx.append(session)
    app.add_routes([web.post("/v1/chat/completions", chat)])
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]))
