"""A model server on loopback that plays a manager with two specialists, for real teams of any framework.

It speaks Chat Completions, Responses and Anthropic Messages, streamed or not. What it says depends only on who is asked
(each agent's instructions contain "You are the manager", "... researcher", "... analyst") and on what stands in the
history, so that a team gets the same replies in whatever framework it was built:

    manager     hands over to the researcher; the first attempt fails (see `Failing`), the second one works
    researcher  searches for both towns with two calls in one reply, then reports
    manager     hands over to the analyst
    analyst     thinks apart (a reasoning field), calls the calculator, then reports
    manager     answers

The model's name in a request chooses how the first hand-over fails: `scripted-wrong-name`, `scripted-wrong-arguments`,
or `scripted-busy`, in which the call is right and the team itself refuses it once.

    PYTHONPATH=tests python -m support.scripted_team --port 8000
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from aiohttp import web

from support.team_script import Asked, Failing, Json, Reply, Tool, Turn, reply_to, tokens


@dataclass(frozen=True)
class Metered:
    """What one call took, as the server says it in the reply."""

    agent: str
    protocol: str
    prompt_tokens: int
    completion_tokens: int


class ScriptedTeam:
    """The server. `metered` holds what each call took."""

    def __init__(self) -> None:
        self.metered: list[Metered] = []
        self.stored: dict[str, tuple[Turn, ...]] = {}
        """Histories by the id of the response that ends them, for `previous_response_id`."""
        self._numbers = itertools.count(1)

    def application(self) -> web.Application:
        app = web.Application(client_max_size=1 << 28)
        app.add_routes(
            [
                web.get("/v1/models", self._models),
                web.get("/ledger", self._ledger),
                web.post("/v1/chat/completions", self._chat),
                web.post("/v1/responses", self._responses),
                web.post("/v1/messages", self._messages),
                web.post("/v1/messages/count_tokens", self._count),
            ]
        )
        return app

    async def _models(self, request: web.Request) -> web.Response:
        rows = [{"id": f"scripted-{way}", "object": "model", "owned_by": "coa"} for way in Failing]
        return web.json_response({"object": "list", "data": rows})

    async def _ledger(self, request: web.Request) -> web.Response:
        return web.json_response([vars(call) for call in self.metered])

    async def _count(self, request: web.Request) -> web.Response:
        return web.json_response({"input_tokens": tokens(await request.text())})

    def _answered(self, protocol: str, asked: Asked) -> tuple[Reply, int, int]:
        agent, reply = reply_to(asked)
        prompt = tokens(asked.system, asked.heard)
        completion = tokens(reply.text, reply.thought, *(json.dumps(call) for call in reply.calls))
        self.metered.append(Metered(agent, protocol, prompt, completion))
        return reply, prompt, completion

    def _id(self, kind: str) -> str:
        return f"{kind}_{next(self._numbers):04d}"

    # Chat Completions

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        asked = _from_chat(body)
        reply, prompt, completion = self._answered("chat", asked)
        usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        calls = [
            {"id": self._id("call"), "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
            for name, given in reply.calls
        ]
        message: Json = {"role": "assistant", "content": reply.text or None}
        if reply.thought:
            message["reasoning_content"] = reply.thought
        if calls:
            message["tool_calls"] = calls
        finish = "tool_calls" if calls else "stop"
        head = {"id": self._id("chatcmpl"), "created": 1_700_000_000, "model": asked.model}
        if not asked.stream:
            choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
            return web.json_response({**head, "object": "chat.completion", "choices": [choice], "usage": usage})

        def chunk(delta: Json, finish: str | None = None) -> Json:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            return {**head, "object": "chat.completion.chunk", "choices": [choice]}

        events = [chunk({"role": "assistant", "content": ""})]
        events += [chunk({"reasoning_content": piece}) for piece in _pieces(reply.thought)]
        events += [chunk({"content": piece}) for piece in _pieces(reply.text)]
        for index, call in enumerate(calls):
            function = call["function"]
            assert isinstance(function, dict)
            opening = {**call, "index": index, "function": {"name": function["name"], "arguments": ""}}
            events.append(chunk({"tool_calls": [opening]}))
            for piece in _pieces(function["arguments"]):
                events.append(chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]}))
        events.append(chunk({}, finish))
        if (body.get("stream_options") or {}).get("include_usage"):
            events.append({**head, "object": "chat.completion.chunk", "choices": [], "usage": usage})
        return await _stream(request, [("", event) for event in events], done=True)

    # Responses

    async def _responses(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        before = self.stored.get(str(body.get("previous_response_id")), ())
        asked = _from_responses(body, before)
        reply, prompt, completion = self._answered("responses", asked)
        identity = self._id("resp")
        output: list[Json] = []
        if reply.thought:
            summary = [{"type": "summary_text", "text": reply.thought}]
            output.append({"type": "reasoning", "id": self._id("rs"), "summary": summary})
        if reply.text:
            parts = [{"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}]
            shown = {"type": "message", "id": self._id("msg"), "role": "assistant", "status": "completed"}
            output.append({**shown, "content": parts})
        for name, given in reply.calls:
            called = {"type": "function_call", "id": self._id("fc"), "call_id": self._id("call"), "name": name}
            output.append({**called, "arguments": json.dumps(given), "status": "completed"})
        self.stored[identity] = (
            *asked.turns, Turn("assistant", reply.text, tuple(name for name, _ in reply.calls)),
        )  # fmt: skip
        usage = {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": completion,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + completion,
        }
        whole: Json = {
            "id": identity, "object": "response", "created_at": 1_700_000_000, "status": "completed",
            "model": asked.model, "output": output, "usage": usage, "error": None, "incomplete_details": None,
            "instructions": body.get("instructions"), "metadata": {}, "parallel_tool_calls": True, "temperature": 1.0,
            "tool_choice": body.get("tool_choice") or "auto", "tools": body.get("tools") or [], "top_p": 1.0,
            "previous_response_id": body.get("previous_response_id"),
        }  # fmt: skip
        if not asked.stream:
            return web.json_response(whole)
        begun = {**whole, "status": "in_progress", "output": [], "usage": None}
        events: list[tuple[str, Json]] = [("response.created", {"response": begun})]
        for index, item in enumerate(output):
            events += _item_events(index, item)
        events.append(("response.completed", {"response": whole}))
        numbered = [(n, {"type": n, "sequence_number": i, **event}) for i, (n, event) in enumerate(events)]
        return await _stream(request, numbered)

    # Anthropic Messages

    async def _messages(self, request: web.Request) -> web.StreamResponse:
        asked = _from_messages(await request.json())
        reply, prompt, completion = self._answered("messages", asked)
        blocks: list[Json] = []
        if reply.thought:
            blocks.append({"type": "thinking", "thinking": reply.thought, "signature": "c2lnbmVk"})
        if reply.text:
            blocks.append({"type": "text", "text": reply.text})
        blocks += [{"type": "tool_use", "id": self._id("toolu"), "name": n, "input": given} for n, given in reply.calls]
        stop = "tool_use" if reply.calls else "end_turn"
        head: Json = {
            "id": self._id("msg"), "type": "message", "role": "assistant", "model": asked.model,
            "stop_sequence": None,
        }  # fmt: skip
        usage = {"input_tokens": prompt, "output_tokens": completion}
        if not asked.stream:
            return web.json_response({**head, "content": blocks, "stop_reason": stop, "usage": usage})
        begun = {**head, "content": [], "stop_reason": None, "usage": {"input_tokens": prompt, "output_tokens": 1}}
        events: list[tuple[str, Json]] = [("message_start", {"message": begun})]
        for index, block in enumerate(blocks):
            kind = block["type"]
            empty: Json = {"text": {"text": ""}, "thinking": {"thinking": "", "signature": ""}}.get(
                kind, {**block, "input": {}}
            )
            events.append(("content_block_start", {"index": index, "content_block": {"type": kind, **empty}}))
            if kind == "text":
                deltas = [{"type": "text_delta", "text": piece} for piece in _pieces(block["text"])]
            elif kind == "thinking":
                deltas = [{"type": "thinking_delta", "thinking": piece} for piece in _pieces(block["thinking"])]
                deltas.append({"type": "signature_delta", "signature": block["signature"]})
            else:
                pieces = _pieces(json.dumps(block["input"]))
                deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
            events += [("content_block_delta", {"index": index, "delta": delta}) for delta in deltas]
            events.append(("content_block_stop", {"index": index}))
        events.append(("message_delta", {"delta": {"stop_reason": stop, "stop_sequence": None}, "usage": usage}))
        events.append(("message_stop", {}))
        return await _stream(request, [(name, {"type": name, **event}) for name, event in events])


def _pieces(text: str, size: int = 12) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def _item_events(index: int, item: Json) -> Iterator[tuple[str, Json]]:
    place = {"item_id": item["id"], "output_index": index}
    kind = item["type"]
    if kind == "message":
        yield "response.output_item.added", {"output_index": index, "item": {**item, "content": []}}
        part = item["content"][0]
        at = {**place, "content_index": 0}
        yield "response.content_part.added", {**at, "part": {**part, "text": ""}}
        for piece in _pieces(part["text"]):
            yield "response.output_text.delta", {**at, "delta": piece, "logprobs": []}
        yield "response.output_text.done", {**at, "text": part["text"], "logprobs": []}
        yield "response.content_part.done", {**at, "part": part}
    elif kind == "function_call":
        yield "response.output_item.added", {"output_index": index, "item": {**item, "arguments": ""}}
        for piece in _pieces(item["arguments"]):
            yield "response.function_call_arguments.delta", {**place, "delta": piece}
        done = {**place, "arguments": item["arguments"], "name": item["name"]}
        yield "response.function_call_arguments.done", done
    else:
        yield "response.output_item.added", {"output_index": index, "item": {**item, "summary": []}}
        part = item["summary"][0]
        at = {**place, "summary_index": 0}
        yield "response.reasoning_summary_part.added", {**at, "part": {**part, "text": ""}}
        for piece in _pieces(part["text"]):
            yield "response.reasoning_summary_text.delta", {**at, "delta": piece}
        yield "response.reasoning_summary_text.done", {**at, "text": part["text"]}
        yield "response.reasoning_summary_part.done", {**at, "part": part}
    yield "response.output_item.done", {"output_index": index, "item": item}


async def _stream(request: web.Request, events: list[tuple[str, Json]], *, done: bool = False) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for name, event in events:
        head = f"event: {name}\n" if name else ""
        await response.write(f"{head}data: {json.dumps(event)}\n\n".encode())
    if done:
        await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


def _text(content: object) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(_text(part) for part in content)
    if isinstance(content, dict):
        for name in ("text", "content", "output", "thinking"):
            if name in content:
                return _text(content[name])
        return ""
    return str(content)


def _from_chat(body: Json) -> Asked:
    rows = body.get("messages") or []
    system = "\n".join(_text(row.get("content")) for row in rows if row.get("role") in ("system", "developer"))
    turns = tuple(
        Turn(
            row.get("role", ""),
            _text(row.get("content")),
            tuple(call["function"]["name"] for call in row.get("tool_calls") or () if "function" in call),
        )
        for row in rows
        if row.get("role") not in ("system", "developer")
    )
    functions = [tool.get("function") or {} for tool in body.get("tools") or ()]
    tools = tuple(Tool(f["name"], f.get("description") or "", f.get("parameters") or {}) for f in functions if f)
    return Asked(str(body.get("model")), system, turns, tools, bool(body.get("stream")))


def _from_responses(body: Json, before: tuple[Turn, ...]) -> Asked:
    system, turns = [_text(body.get("instructions"))], list(before)
    given = body.get("input") or []
    for row in [{"role": "user", "content": given}] if isinstance(given, str) else given:
        kind = row.get("type", "message")
        if kind == "function_call":
            turns.append(Turn("assistant", "", (row["name"],)))
        elif kind == "function_call_output":
            turns.append(Turn("tool", _text(row.get("output"))))
        elif kind == "reasoning":
            continue
        elif row.get("role") in ("system", "developer"):
            system.append(_text(row.get("content")))
        else:
            turns.append(Turn(row.get("role", ""), _text(row.get("content"))))
    rows = [tool for tool in body.get("tools") or () if tool.get("type") == "function"]
    tools = tuple(Tool(row["name"], row.get("description") or "", row.get("parameters") or {}) for row in rows)
    return Asked(str(body.get("model")), "\n".join(system), tuple(turns), tools, bool(body.get("stream")))


def _from_messages(body: Json) -> Asked:
    turns = []
    for row in body.get("messages") or []:
        content = row.get("content")
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        calls = tuple(block["name"] for block in blocks if block.get("type") == "tool_use")
        shown = [block for block in blocks if block.get("type") in ("text", "tool_result")]
        turns.append(Turn(row.get("role", ""), _text(shown), calls))
    tools = tuple(
        Tool(row["name"], row.get("description") or "", row.get("input_schema") or {})
        for row in body.get("tools") or ()
        if "name" in row
    )
    return Asked(
        str(body.get("model")), _text(body.get("system")), tuple(turns), tools, bool(body.get("stream"))
    )  # fmt: skip


async def _served(server: ScriptedTeam, port: int) -> AsyncGenerator[str, None]:
    runner = web.AppRunner(server.application(), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    address = runner.addresses[0]
    try:
        yield f"http://127.0.0.1:{address[1]}"
    finally:
        await runner.cleanup()


async def _ended(serving: AsyncGenerator[str, None]) -> None:
    await serving.aclose()


async def _next(serving: AsyncGenerator[str, None]) -> str:
    return await anext(serving)


@contextmanager
def scripted_team(port: int = 0) -> Iterator[tuple[str, ScriptedTeam]]:
    """The address of a running server, without `/v1`, and the server itself."""
    server = ScriptedTeam()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    serving = _served(server, port)
    url: str = asyncio.run_coroutine_threadsafe(_next(serving), loop).result()
    try:
        yield url, server
    finally:
        asyncio.run_coroutine_threadsafe(_ended(serving), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Play a manager with two specialists, behind three APIs.")
    parser.add_argument("--port", type=int, default=8000)
    with scripted_team(parser.parse_args().port) as (address, _):
        print(f"export OPENAI_BASE_URL={address}/v1 ANTHROPIC_BASE_URL={address} OPENAI_API_KEY=none")
        threading.Event().wait()
