"""A served run as a chat completion, whole or in chunks.

Both come from the same deltas. Thoughts, plans and other steps before the answer are `reasoning_content` and
`reasoning` (clients read one or the other), the answer is `content`, and a call of a client's tool is `tool_calls`.
What the server's own tools do is readable in the reasoning, and typed in `coa`: a list of all items of the run, whose
parts are joined by `index`, as clients do with `tool_calls`:

    {"index": 1, "agent": "web_search", "kind": "tool"}                  an item begins
    {"index": 1, "arguments": {"text": "Arun"}}                          its tool is called
    {"index": 1, "output": "...", "ok": true, "seconds": 0.2}            the tool has returned
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from coa.serve.api_error import ApiError
from coa.serve.events import ItemBegan, ItemDone, ItemKind, ItemText, RunEvent, ToolReturned
from coa.serve.request import ClientCall
from coa.serve.streams import DONE
from coa.serve.usage import TokenCount
from coa.trajectory import FailureSite, Profile, Stop, Trajectory
from coa.trajectory.citations import Citation
from coa.trajectory.shorten import shorten

Delta = dict[str, Any]
_SHOWN_CHARACTERS: Final = 400
"""How much of a tool's result the reasoning shows. `coa` has all of it."""
_FINISH: Final[Mapping[Stop, str]] = {
    Stop.ANSWERED: "stop",
    Stop.UNANSWERED: "stop",
    Stop.WAITING: "tool_calls",
}


class Deltas:
    """What each event adds to the assistant's message."""

    def __init__(self, profile: Profile, stops: Sequence[str] = ()) -> None:
        self._profile = profile
        self._content = StopCut(stops)
        self._items: dict[int, tuple[int, ItemBegan]] = {}
        """By their number in the run: their index in `coa`, and how they began."""
        self._held: list[str] = []
        """What the model wrote of a client's tool call that may still turn out to be unreadable."""
        self._reasoning = False
        self._said: list[str] = []

    @property
    def content(self) -> str:
        """The answer so far."""
        return "".join(self._said)

    def of(self, events: Iterable[RunEvent]) -> Iterator[Delta]:
        """Texts of one item that follow each other come as one delta."""
        item, pieces = -1, list[str]()
        for event in events:
            if isinstance(event, ItemText):
                if event.item != item and pieces:
                    yield self._text(item, "".join(pieces))
                    pieces.clear()
                item = event.item
                pieces.append(event.text)
                continue
            if pieces:
                yield self._text(item, "".join(pieces))
                pieces.clear()
            yield from self._other(event)
        if pieces:
            yield self._text(item, "".join(pieces))

    def text(self, event: ItemText) -> Delta:
        """As `of` for a single piece of text."""
        return self._text(event.item, event.text)

    def _other(self, event: RunEvent) -> Iterator[Delta]:
        if isinstance(event, ItemBegan):
            yield self._began(event)
        elif isinstance(event, ItemDone):
            yield from self._done(event)
        elif isinstance(event, ToolReturned):
            yield from self._returned(event)
        elif rest := self._content.rest():
            yield self._say(rest)

    def _began(self, event: ItemBegan) -> Delta:
        index = len(self._items)
        self._items[event.item] = index, event
        item = {"index": index, "agent": event.agent, "kind": str(event.kind)}
        if event.kind in (ItemKind.ANSWER, ItemKind.CLIENT_TOOL):
            return {"coa": [item]}
        return {**self._reason(self._heading(event.agent)), "coa": [item]}

    def _heading(self, agent: str) -> str:
        blank = "\n\n" if self._reasoning else ""
        if agent == self._profile.thought:
            return blank
        known = self._profile.agents.get(agent)
        return f"{blank}**{known.title if known is not None else agent}**\n\n"

    def _text(self, item: int, text: str) -> Delta:
        kind = self._items[item][1].kind
        if kind is ItemKind.ANSWER:
            return self._say(kept) if (kept := self._content.feed(text)) else {}
        if kind is ItemKind.CLIENT_TOOL:
            self._held.append(text)
            return {}
        return self._reason(text)

    def _done(self, event: ItemDone) -> Iterator[Delta]:
        if event.arguments is not None:
            yield {"coa": [{"index": self._items[event.item][0], "arguments": dict(event.arguments)}]}

    def _returned(self, event: ToolReturned) -> Iterator[Delta]:
        index, began = self._items[event.item]
        written = ""
        if began.kind is ItemKind.CLIENT_TOOL:  # a call that could not be read, or was one too many
            written = self._heading(began.agent) + "".join(self._held)
            self._held.clear()
        meta, output = event.step.meta, event.step.text
        quoted = "\n".join(f"> {line}" for line in shorten(output, _SHOWN_CHARACTERS).splitlines())
        result: Delta = {"index": index, "output": output, "ok": meta.get("ok") is not False}
        if "seconds" in meta:
            result["seconds"] = meta["seconds"]
        yield {**self._reason(f"{written}\n\n{quoted}"), "coa": [result]}

    def _say(self, text: str) -> Delta:
        self._said.append(text)
        return {"content": text}

    def _reason(self, text: str) -> Delta:
        if not text:
            return {}
        self._reasoning = True
        return {"reasoning_content": text, "reasoning": text}


class StopCut:
    """Ends a text before the first stop string, also where that arrives in pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        """The end of the text so far, which may be the beginning of a stop string."""
        self.ended = False

    def feed(self, text: str) -> str:
        """What can be passed on now."""
        if self.ended:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.ended, self._held = True, ""
            return text[: min(found)]
        held = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def rest(self) -> str:
        """What was held back, when no more text comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of the text with which the stop string begins."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0


def finish_reason(trajectory: Trajectory) -> str:
    """`length` for a run that came to one of its limits, also if it has an answer all the same."""
    return _FINISH.get(trajectory.stop, "length")


def failure_of(trajectory: Trajectory) -> ApiError | None:
    """The error of a run that came to no end."""
    if trajectory.stop is Stop.INTERRUPTED:
        return ApiError(503, "The run was cancelled before it had an answer.", code="run_cancelled")
    if trajectory.failure is None:
        return None
    failure = trajectory.failure
    if failure.site is FailureSite.MODEL:
        return ApiError(502, f"The model server failed: {failure.message}", code="model_error")
    return ApiError(500, f"The run failed: {failure.message}", code="run_failed")


def tool_calls(call: ClientCall) -> list[Delta]:
    function = {"name": call.name, "arguments": orjson.dumps(dict(call.arguments)).decode()}
    return [{"index": 0, "id": call.id, "type": "function", "function": function}]


def cited_urls(cited: Iterable[Citation]) -> list[Delta]:
    return [
        {
            "type": "url_citation",
            "url_citation": {"url": one.url, "title": one.title, "start_index": one.start, "end_index": one.end},
        }
        for one in cited
    ]


def usage_object(count: TokenCount) -> dict[str, Any]:
    return {
        "prompt_tokens": count.read,
        "completion_tokens": count.written,
        "total_tokens": count.total,
        "prompt_tokens_details": {"cached_tokens": count.cached},
        "completion_tokens_details": {"reasoning_tokens": count.reasoning},
    }


def message_of(deltas: Iterable[Delta]) -> dict[str, Any]:
    """The whole message, from the deltas of all events."""
    reasoning, content, items, others = list[str](), list[str](), list[dict[str, Any]](), dict[str, Any]()
    for delta in deltas:
        reasoning.append(delta.get("reasoning_content", ""))
        content.append(delta.get("content", ""))
        for part in delta.get("coa", ()):
            if part["index"] == len(items):
                items.append({})
            items[part["index"]] |= part
        others |= {key: delta[key] for key in ("tool_calls", "annotations") if key in delta}
    if calls := others.get("tool_calls"):
        others["tool_calls"] = [{key: value for key, value in call.items() if key != "index"} for call in calls]
    thought = "".join(reasoning)
    return {
        "role": "assistant",
        "content": "".join(content) if not calls else None,
        "refusal": None,
        **({"reasoning_content": thought, "reasoning": thought} if thought else {}),
        **others,
        "coa": items,
    }


def completion(head: Mapping[str, Any], message: Mapping[str, Any], finish: str, count: TokenCount) -> dict[str, Any]:
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    return {**head, "object": "chat.completion", "choices": [choice], "usage": usage_object(count)}


class Chunks:
    """Server-sent events of one streamed completion."""

    def __init__(self, head: Mapping[str, Any], *, include_usage: bool) -> None:
        """`head` has the `id`, the time of creation and the model, which every chunk repeats."""
        self._head = orjson.dumps({**head, "object": "chat.completion.chunk"})[:-1]
        self._start = b"data: " + self._head + b',"choices":[{"index":0,"delta":'
        usage = b',"usage":null' if include_usage else b""
        self._end = b',"logprobs":null,"finish_reason":null}]' + usage + b"}\n\n"
        self._usage = usage
        self._include_usage = include_usage

    def first(self) -> bytes:
        return self.delta({"role": "assistant", "content": ""})

    def delta(self, delta: Delta) -> bytes:
        return self._start + orjson.dumps(delta) + self._end

    def last(self, finish: str, count: TokenCount) -> bytes:
        end = b'{},"logprobs":null,"finish_reason":' + orjson.dumps(finish) + b"}]" + self._usage + b"}\n\n"
        usage = b""
        if self._include_usage:
            usage = b"data: " + self._head + b',"choices":[],"usage":' + orjson.dumps(usage_object(count)) + b"}\n\n"
        return self._start + end + usage + DONE


def error_event(error: ApiError) -> bytes:
    return b"data: " + orjson.dumps(error.body()) + b"\n\n" + DONE
