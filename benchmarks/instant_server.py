"""A model server that answers at once: three searches, then the answer. Run as a process of its own."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import orjson
from aiohttp import web

from coa.models.tokenizer import TextTokenizer, load_tokenizer

SEARCH = "<think>I need one more fact about the place.</think>\n<web_search>Brannock Head light number {}</web_search>"
ANSWER = "<think>That is all I need.</think>\n<answer>the north light</answer>"
TURNS = 3


def say(seen: int) -> str:
    return SEARCH.format(seen) if seen < TURNS else ANSWER


def application(tokenizer: TextTokenizer) -> web.Application:
    replies = {text: tokenizer.encode([text])[0] for text in map(say, range(TURNS + 1))}

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "instant", "owned_by": "vllm"}]})

    async def completions(request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        text = say(tokenizer.decode(body["prompt"]).count("<observation>B"))
        ids = replies[text]
        choice = {"text": text, "token_ids": ids, "logprobs": {"token_logprobs": [-0.5] * len(ids)}}
        return _answer({**choice, "finish_reason": "stop"}, len(body["prompt"]), len(ids))

    async def chat(request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        if "tools" in body:
            return _answer(_called(sum(message["role"] == "tool" for message in body["messages"])), 500, 30)
        text = say(body["messages"][-1]["content"].count("<observation>B"))
        return _answer({"message": {"content": text}, "finish_reason": "stop"}, 500, 30)

    app = web.Application(client_max_size=1 << 26)
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/completions", completions)
    app.router.add_post("/v1/chat/completions", chat)
    return app


def _called(seen: int) -> dict[str, Any]:
    """The same turns for clients that know tools by the API's own calls, not by tags."""
    if seen >= TURNS:
        return {"index": 0, "message": {"role": "assistant", "content": "the north light"}, "finish_reason": "stop"}
    function = {"name": "web_search", "arguments": orjson.dumps({"query": f"light number {seen}"}).decode()}
    call = {"id": f"call-{seen}", "type": "function", "function": function}
    message = {"role": "assistant", "content": "I need one more fact about the place.", "tool_calls": [call]}
    return {"index": 0, "message": message, "finish_reason": "tool_calls"}


def _answer(choice: dict[str, Any], prompt: int, completion: int) -> web.Response:
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    told = {"id": "1", "object": "chat.completion", "created": 1, "model": "instant"}
    return web.Response(
        body=orjson.dumps({**told, "choices": [choice], "usage": usage}), content_type="application/json"
    )


async def main() -> None:
    runner = web.AppRunner(application(load_tokenizer("smollm2")), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)  # until the parent goes away


if __name__ == "__main__":
    asyncio.run(main())
