"""Open Responses as its public schema has it: every object and every event is checked with `openresponses-types`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, get_type_hints

import httpx
import openresponses_types
import orjson
from pydantic import BaseModel

ResponseResource: Final[type[BaseModel]] = openresponses_types.ResponseResource


def _event_types() -> dict[str, type[BaseModel]]:
    """The class of each event, by its `type`."""
    found = {}
    for name, kind in vars(openresponses_types).items():
        if name.endswith("StreamingEvent"):
            (value,) = get_type_hints(kind)["type"]
            found[str(value)] = kind
    return found


EVENTS: Final = _event_types()


def checked(response: Mapping[str, Any]) -> dict[str, Any]:
    """The response, which must be valid."""
    ResponseResource.model_validate(response)
    return dict(response)


def checked_events(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The events of a whole stream, which must be valid, numbered, and in the order that clients rely on."""
    listed = [dict(event) for event in events]
    for event in listed:
        EVENTS[event["type"]].model_validate(event)
    assert [event["sequence_number"] for event in listed] == list(range(len(listed)))
    assert [event["type"] for event in listed[:2]] == ["response.created", "response.in_progress"]
    _check_items(listed[2:-1])
    last = listed[-1]
    assert last["type"] in ("response.completed", "response.incomplete", "response.failed")
    assert last["response"]["output"] == [e["item"] for e in listed if e["type"] == "response.output_item.done"]
    return listed


def _check_items(events: Iterable[Mapping[str, Any]]) -> None:
    """Items come one after another; what a client adds up from the pieces is what the finished item says."""
    index, open_item, texts = -1, None, {"summary": "", "content": "", "arguments": ""}
    for event in events:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert open_item is None
            index, open_item, texts = index + 1, event["item"]["id"], dict.fromkeys(texts, "")
        assert event["output_index"] == index
        if kind == "output_item.done":
            item = event["item"]
            assert item["id"] == open_item
            open_item = None
            assert texts["summary"] == "".join(part["text"] for part in item.get("summary", []))
            assert texts["content"] == "".join(part["text"] for part in item.get("content", []))
            assert texts["arguments"] == item.get("arguments", "")
        elif kind != "output_item.added":
            assert event["item_id"] == open_item
        if kind.endswith(".delta"):
            where = {"reasoning_summary_text": "summary", "function_call_arguments": "arguments"}
            texts[where.get(kind.removesuffix(".delta"), "content")] += event["delta"]
        elif kind == "output_text.annotation.added":
            annotation = event["annotation"]
            assert 0 <= annotation["start_index"] < annotation["end_index"] <= len(texts["content"])
    assert open_item is None


def streamed(url: str, body: Mapping[str, Any], **options: Any) -> list[dict[str, Any]]:
    """The checked events of a streamed request, read from the bytes of the answer."""
    with httpx.stream("POST", f"{url}/v1/responses", json={**body, "stream": True}, timeout=30, **options) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        return checked_events(frames(answer.read()))


def frames(stream: bytes) -> list[dict[str, Any]]:
    """The events of a stream, whose lines must be as the standard has them."""
    *blocks, last, rest = stream.split(b"\n\n")
    assert (last, rest) == (b"data: [DONE]", b"")
    events = []
    for block in blocks:
        if block.startswith(b":"):
            continue  # a heartbeat
        name, data = block.split(b"\n")
        event = orjson.loads(data.removeprefix(b"data: "))
        assert name == b"event: " + event["type"].encode()
        events.append(event)
    return events
