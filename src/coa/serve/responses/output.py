"""From the events of a run to the items of a response and to the events of its stream.

Each step of the chain is one item. Thoughts, plans and other roles are `reasoning` items whose summary is the text. A
call of the server's own tools is a `reasoning` item too: its summary names the tool and what it was given, its content
is what the tool returned. The answer is a `message`. Only a call that the client has to make is a `function_call`; its
id is known when the run has stopped to wait for it, so its events come together at the end.

Ids of items are made of the run's id and the item's number. So the same run always gives the same events, and a stream
can be resumed by writing it again from the beginning and leaving out what the client has seen.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import orjson

from coa.serve.events import ItemBegan, ItemDone, ItemKind, ItemText, RunEnded, RunEvent, ToolReturned
from coa.serve.request import ClientCall
from coa.trajectory import Step, Stop
from coa.trajectory.citations import Citation, citations

Json = dict[str, Any]


class _OpenItem:
    """The item that is being written."""

    def __init__(self, began: ItemBegan, item_id: str, index: int) -> None:
        self.agent, self.kind, self.id, self.index = began.agent, began.kind, item_id, index
        self.pieces: list[str] = []
        self.part_open = False
        self.done: ItemDone | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class Output:
    """The output of one response. `feed` takes each event of the run once and gives the events for a stream."""

    def __init__(
        self,
        run_id: str,
        *,
        call: Callable[[], ClientCall | None] = lambda: None,
        portable: bool = False,
        earlier: Sequence[Step] = (),
        quiet: bool = False,
    ) -> None:
        """`call` finds the call that the client has to make, when the run is over. If `portable`, reasoning items carry
        the whole step, so that a client can send it back to any server. `earlier` are the steps before the first event,
        of a run that is continued. If `quiet`, only the items matter, and `feed` leaves out pieces of their texts."""
        self.items: list[Json] = []
        """The items that are complete."""
        self._run_id, self._call, self._portable, self._quiet = run_id, call, portable, quiet
        self._open: _OpenItem | None = None
        self._returned = [*earlier]

    def feed(self, event: RunEvent) -> list[Json]:
        if isinstance(event, ItemText):
            return self._grow(event.text)
        if isinstance(event, ItemBegan):
            return [*self._begin(event)]
        if isinstance(event, ItemDone):
            return [*self._done(event)]
        if isinstance(event, ToolReturned):
            return [*self._tool_returned(event.step)]
        return [*self._ended(event)]

    def snapshot(self) -> list[Json]:
        """The items so far, with the one that is being written."""
        item = self._open
        if item is None or item.kind is ItemKind.CLIENT_TOOL:
            return list(self.items)
        if item.kind is ItemKind.ANSWER:
            return [*self.items, _message(item, "in_progress", item.text, [])]
        return [*self.items, self._reasoning(item, "in_progress", _summary(item, item.text))]

    # ---- one event

    def _begin(self, event: ItemBegan) -> Iterable[Json]:
        yield from self._close()
        prefix = "msg" if event.kind is ItemKind.ANSWER else "rs"
        index = len(self.items)
        item = self._open = _OpenItem(event, f"{prefix}_{self._run_id}_{index}", index)
        if item.kind is ItemKind.CLIENT_TOOL:
            return
        if item.kind is ItemKind.ANSWER:
            yield _added(item, _message(item, "in_progress", None, []))
            yield _content_part("added", item, _text_part("", []))
            return
        yield _added(item, self._reasoning(item, "in_progress", None))
        if item.kind is ItemKind.TOOL:
            yield from self._open_part(item)
            yield _delta("reasoning_summary_text", item, _named(item.agent), summary_index=0)

    def _grow(self, text: str) -> list[Json]:
        item = self._open
        if item is None:
            return []
        item.pieces.append(text)
        if self._quiet or item.kind is ItemKind.CLIENT_TOOL:
            return []
        if item.kind is ItemKind.ANSWER:
            return [_delta("output_text", item, text, content_index=0, logprobs=[])]
        part = [] if item.part_open else [*self._open_part(item)]
        return [*part, _delta("reasoning_summary_text", item, text, summary_index=0)]

    def _done(self, event: ItemDone) -> Iterable[Json]:
        item = self._open
        if item is None:
            return
        item.done = event
        if item.kind is ItemKind.ANSWER:
            yield from self._close_answer(item)
        elif item.kind is ItemKind.THOUGHT:
            yield from self._close_reasoning(item, None)
        elif item.kind is ItemKind.TOOL:  # the summary is complete; the result follows
            yield from self._close_part(item)

    def _tool_returned(self, step: Step) -> Iterable[Json]:
        self._returned.append(step)
        item = self._open
        if item is None:
            return
        if item.kind is ItemKind.CLIENT_TOOL:  # a call that could not be made: nothing for the client to do
            yield _added(item, self._reasoning(item, "in_progress", None))
            yield from self._open_part(item)
            yield _delta("reasoning_summary_text", item, _summary(item, item.text), summary_index=0)
            yield from self._close_part(item)
        yield from self._close_reasoning(item, step)

    def _ended(self, event: RunEnded) -> Iterable[Json]:
        item, call = self._open, self._call()
        if event.trajectory.stop is Stop.WAITING and call is not None:
            if item is not None and item.kind is not ItemKind.CLIENT_TOOL:
                yield from self._close()
            yield from self._hand_over(call)
        else:
            yield from self._close()

    # ---- the end of an item

    def _close(self) -> Iterable[Json]:
        """End the item that is open, as it is."""
        item = self._open
        if item is None:
            return
        if item.kind is ItemKind.CLIENT_TOOL:
            self._open = None  # it was not made, and nothing came of it
        elif item.kind is ItemKind.ANSWER:
            yield from self._close_answer(item)
        else:
            yield from self._close_part(item)
            yield from self._close_reasoning(item, None)

    def _close_answer(self, item: _OpenItem) -> Iterable[Json]:
        annotations = [_annotation(one) for one in citations(item.text, self._returned)]
        at = {"item_id": item.id, "output_index": item.index, "content_index": 0}
        for number, annotation in enumerate(annotations):
            where = {**at, "annotation_index": number, "annotation": annotation}
            yield {"type": "response.output_text.annotation.added", **where}
        yield {"type": "response.output_text.done", **at, "text": item.text, "logprobs": []}
        yield _content_part("done", item, _text_part(item.text, annotations))
        yield self._finish(item, _message(item, "completed" if item.done else "incomplete", item.text, annotations))

    def _close_reasoning(self, item: _OpenItem, result: Step | None) -> Iterable[Json]:
        yield from self._close_part(item)
        if result is not None:
            at = {"item_id": item.id, "output_index": item.index, "content_index": 0}
            yield _content_part("added", item, {"type": "reasoning_text", "text": ""})
            yield {"type": "response.reasoning.delta", **at, "delta": result.text}
            yield {"type": "response.reasoning.done", **at, "text": result.text}
            yield _content_part("done", item, {"type": "reasoning_text", "text": result.text})
        status = "completed" if item.done else "incomplete"
        yield self._finish(item, self._reasoning(item, status, _summary(item, item.text), result))

    def _hand_over(self, call: ClientCall) -> Iterable[Json]:
        index = len(self.items)
        item = _OpenItem(ItemBegan(index, call.name, ItemKind.CLIENT_TOOL), f"fc_{self._run_id}_{index}", index)
        arguments = orjson.dumps(call.arguments).decode()
        at = {"item_id": item.id, "output_index": index}
        yield _added(item, _function_call(item, call, "in_progress", ""))
        yield {"type": "response.function_call_arguments.delta", **at, "delta": arguments}
        yield {"type": "response.function_call_arguments.done", **at, "name": call.name, "arguments": arguments}
        yield self._finish(item, _function_call(item, call, "completed", arguments))

    def _finish(self, item: _OpenItem, complete: Json) -> Json:
        self._open = None
        self.items.append(complete)
        return {"type": "response.output_item.done", "output_index": item.index, "item": complete}

    # ---- the parts of a reasoning item

    def _open_part(self, item: _OpenItem) -> Iterable[Json]:
        item.part_open = True
        yield _summary_part("added", item, "")

    def _close_part(self, item: _OpenItem) -> Iterable[Json]:
        if not item.part_open:
            return
        item.part_open = False
        at = {"item_id": item.id, "output_index": item.index, "summary_index": 0}
        text = _summary(item, item.text)
        yield {"type": "response.reasoning_summary_text.done", **at, "text": text}
        yield _summary_part("done", item, text)

    def _reasoning(self, item: _OpenItem, status: str, summary: str | None, result: Step | None = None) -> Json:
        called = item.kind is not ItemKind.THOUGHT
        coa: Json = {"agent": item.agent, "kind": str(ItemKind.TOOL if called else ItemKind.THOUGHT)}
        found: Json = {"type": "reasoning", "id": item.id, "summary": [], "status": status, "coa": coa}
        if summary:
            found["summary"] = [{"type": "summary_text", "text": summary}]
        if called and item.done is not None and item.done.arguments is not None:
            coa["arguments"] = dict(item.done.arguments)
        if result is not None:
            found["content"] = [{"type": "reasoning_text", "text": result.text}]
            coa |= {"ok": result.meta.get("ok", True), "seconds": result.meta.get("seconds")}
        if self._portable and status != "in_progress":
            found["encrypted_content"] = packed(item.agent, item.text, result)
        return found


# ---- a step in a string, for clients that keep the conversation themselves


def packed(agent: str, text: str, result: Step | None) -> str:
    """A step, and what the environment answered, as `encrypted_content`. It contains nothing that the item does not
    show; clients that drop fields which they do not know send this one back unchanged."""
    record: Json = {"agent": agent, "text": text}
    if result is not None:
        record |= {"result": result.text, "ok": bool(result.meta.get("ok", True))}
    return base64.urlsafe_b64encode(orjson.dumps(record)).decode()


# ---- wire shapes


def _named(agent: str) -> str:
    return f"{agent}: "


def _summary(item: _OpenItem, text: str) -> str:
    return text if item.kind is ItemKind.THOUGHT else _named(item.agent) + text


def _added(item: _OpenItem, shown: Json) -> Json:
    return {"type": "response.output_item.added", "output_index": item.index, "item": shown}


def _annotation(cited: Citation) -> Json:
    place = {"start_index": cited.start, "end_index": cited.end}
    return {"type": "url_citation", "url": cited.url, "title": cited.title, **place}


def _message(item: _OpenItem, status: str, text: str | None, annotations: list[Json]) -> Json:
    content = [] if text is None else [_text_part(text, annotations)]
    return {"type": "message", "id": item.id, "status": status, "role": "assistant", "content": content}


def _function_call(item: _OpenItem, call: ClientCall, status: str, arguments: str) -> Json:
    named = {"call_id": call.id, "name": call.name, "arguments": arguments}
    return {"type": "function_call", "id": item.id, **named, "status": status}


def _text_part(text: str, annotations: list[Json]) -> Json:
    return {"type": "output_text", "text": text, "annotations": annotations, "logprobs": []}


def _content_part(what: str, item: _OpenItem, part: Json) -> Json:
    at = {"item_id": item.id, "output_index": item.index, "content_index": 0}
    return {"type": f"response.content_part.{what}", **at, "part": part}


def _summary_part(what: str, item: _OpenItem, text: str) -> Json:
    at = {"item_id": item.id, "output_index": item.index, "summary_index": 0}
    part = {"type": "summary_text", "text": text}
    return {"type": f"response.reasoning_summary_part.{what}", **at, "part": part}


def _delta(what: str, item: _OpenItem, text: str, **more: Any) -> Json:
    at = {"item_id": item.id, "output_index": item.index}
    return {"type": f"response.{what}.delta", **at, **more, "delta": text}
