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

    python tests/support/scripted_team.py --port 8000
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import re
import threading
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from aiohttp import web

Json = dict[str, Any]
ANSWER = "674,500"
SEARCHES = ("inhabitants of Ostrel", "inhabitants of Brnov")
SUM = "279500 + 395000"


class Failing(StrEnum):
    """How the first hand-over fails."""

    WRONG_NAME = "wrong-name"
    """The manager names an agent that does not exist."""
    WRONG_ARGUMENTS = "wrong-arguments"
    """The arguments do not fit the tool."""
    BUSY = "busy"
    """The call is right. The team refuses it once."""


@dataclass(frozen=True)
class Turn:
    role: str
    text: str = ""
    calls: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tool:
    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    """A request in any protocol."""

    model: str
    system: str
    turns: tuple[Turn, ...]
    tools: tuple[Tool, ...]
    stream: bool

    @property
    def heard(self) -> str:
        return "\n".join(turn.text for turn in self.turns)


@dataclass(frozen=True)
class Reply:
    text: str = ""
    thought: str = ""
    calls: tuple[tuple[str, Json], ...] = ()


@dataclass(frozen=True)
class Metered:
    """What one call took, as the server says it in the reply."""

    agent: str
    protocol: str
    prompt_tokens: int
    completion_tokens: int


def reply_to(asked: Asked) -> tuple[str, Reply]:
    """Who is asked, and what it says."""
    said = f"{asked.system}\n{asked.turns[0].text if asked.turns else ''}"
    agent = next((name for name in ("researcher", "analyst", "manager") if f"You are the {name}" in said), "")
    if agent == "researcher":
        return agent, _researcher(asked)
    if agent == "analyst":
        return agent, _analyst(asked)
    if agent == "manager":
        return agent, _manager(asked)
    return "nobody", Reply("ok")  # a title, a summary: what a framework asks for on its own account


def _manager(asked: Asked) -> Reply:
    if "The analyst reports:" in asked.heard:
        finishing = _finishing(asked)
        return Reply(calls=((finishing.name, _filled(finishing, ANSWER, "")),)) if finishing else Reply(ANSWER)
    if "The researcher reports:" in asked.heard:
        call = _hand_over(asked, "analyst", "Add 279,500 and 395,000.")
        return Reply("Both numbers are known. The analyst adds them.", calls=(call,))
    wanted = "Find the number of inhabitants of Ostrel and of Brnov."
    if any(turn.calls or turn.role == "assistant" for turn in asked.turns):  # smolagents repeats calls as text
        call = _hand_over(asked, "researcher", wanted)
        return Reply("The request was refused. I ask the researcher again.", calls=(call,))
    way = next((way for way in Failing if way in asked.model), Failing.BUSY)
    call = _hand_over(asked, "researcher", wanted, way)
    return Reply("I ask the researcher how many people live in Ostrel and in Brnov.", calls=(call,))


def _researcher(asked: Asked) -> Reply:
    if "279,500" in asked.heard and "395,000" in asked.heard:
        return _report(asked, "The researcher reports: Ostrel has 279,500 inhabitants and Brnov has 395,000.")
    tool = _tool(asked, "web_search")
    calls = tuple((tool.name, _filled(tool, query, "")) for query in SEARCHES)
    return Reply("I look up both towns at once.", calls=calls)


def _analyst(asked: Asked) -> Reply:
    if "674500" in asked.heard:
        return _report(asked, "The analyst reports: the sum is 674,500.")
    tool = _tool(asked, "calculator")
    return Reply(thought="The sum needs one calculation.", calls=((tool.name, _filled(tool, SUM, "")),))


def _report(asked: Asked, text: str) -> Reply:
    """A member that can give control back, or has a tool to hand in what it found, does so."""
    if finishing := _finishing(asked):
        return Reply(calls=((finishing.name, _filled(finishing, text, "")),))
    back = [tool for tool in asked.tools if re.search(r"manager|transfer_back", tool.name, re.IGNORECASE)]
    if not back:
        back = [tool for tool in asked.tools if tool.name == "transfer_to_agent"]
    if not back:
        return Reply(text)
    return Reply(text, calls=((back[0].name, _filled(back[0], text, "manager")),))


def _finishing(asked: Asked) -> Tool | None:
    names = ("final_answer", "final_result", "submit", "finish")
    return next((tool for tool in asked.tools if tool.name in names), None)


def _tool(asked: Asked, name: str) -> Tool:
    return next((tool for tool in asked.tools if name in tool.name), Tool(name))


_DELEGATION = re.compile(r"delegate|transfer|hand_?off|^task$|^agent$|send_message|assign", re.IGNORECASE)


def _hand_over(asked: Asked, member: str, request: str, failing: Failing | None = None) -> tuple[str, Json]:
    named = [tool for tool in asked.tools if member in tool.name.casefold()]
    generic = [tool for tool in asked.tools if _DELEGATION.search(tool.name)]
    tool = next(iter([*named, *generic]), Tool(member))
    if failing is Failing.WRONG_NAME:
        name = tool.name.casefold().replace(member, "librarian") if named else tool.name
        return name, _filled(tool, request, "librarian")
    if failing is Failing.WRONG_ARGUMENTS:
        return tool.name, {"subject": 7}
    return tool.name, _filled(tool, request, member)


def _filled(tool: Tool, text: str, member: str) -> Json:
    """Arguments that fit the tool: the member's name where an agent is to be named, else the text."""
    properties = tool.parameters.get("properties") or {}
    required = tool.parameters.get("required") or list(properties)
    if member and "subagent_type" in properties:  # Claude Code has an agent of its own where none is named
        required = [*required, "subagent_type"]
    found: Json = {}
    for name in required:
        if name not in properties:
            continue
        if member and re.search(r"agent|coworker|recipient|member|^to$|^name$", name):
            found[name] = member
        elif properties[name].get("type", "string") == "string" or "anyOf" in properties[name]:
            found[name] = "The question is about two towns." if name == "context" else text
        elif properties[name].get("type") == "object":
            found[name] = {}
        elif properties[name].get("type") == "array":
            found[name] = []
        elif properties[name].get("type") == "boolean":
            found[name] = False
        else:
            found[name] = 0
    return found or ({} if tool.parameters else {"query": text})


def tokens(*parts: str) -> int:
    """A count that depends on the text alone."""
    return max(1, sum(len(re.findall(r"\w+|[^\w\s]", part)) for part in parts))


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
