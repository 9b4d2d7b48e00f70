"""Anthropic Messages: `message_start` has the frame, content blocks come one after another, `message_delta` ends it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from coa.distill.gateway.assembled import Assembled, Pieces, error_text, joined
from coa.http import lenient_json

_PARTIAL: Final = "partial_json"


def assemble(found: Iterable[Any]) -> Assembled:
    body: dict[str, Any] = {"type": "message", "role": "assistant", "content": []}
    blocks: dict[int, dict[str, Any]] = {}
    complete, error = False, None
    for event in found:
        if not isinstance(event, dict):
            continue
        match event:
            case {"type": "message_start", "message": dict(message)}:
                body |= message
                blocks |= dict(enumerate(message.get("content") or ()))
            case {"type": "content_block_start", "index": int(at), "content_block": dict(block)}:
                blocks[at] = dict(block)
            case {"type": "content_block_delta", "index": int(at), "delta": dict(delta)}:
                _add(blocks.setdefault(at, {"type": "text"}), delta)
            case {"type": "message_delta"}:
                body |= event.get("delta") or {}
                body["usage"] = _with(body.get("usage"), event.get("usage"))
                extra = {name: value for name, value in event.items() if name not in ("type", "delta", "usage")}
                body |= extra
            case {"type": "message_stop"}:
                complete = True
            case {"type": "error"} | {"error": _}:
                error = error_text(event.get("error"))
                body["error"] = event.get("error")
    body["content"] = [_whole(blocks[at]) for at in sorted(blocks)]
    return Assembled(body, complete=complete and error is None, error=error)


def _with(before: Any, new: Any) -> dict[str, Any]:
    """The last event's counts are those of the whole reply, and it may leave out what is known."""
    counted = dict(before) if isinstance(before, dict) else {}
    counted |= {name: value for name, value in new.items() if value is not None} if isinstance(new, dict) else {}
    return counted


def _add(block: dict[str, Any], delta: dict[str, Any]) -> None:
    if delta.get("type") == "citations_delta":
        block["citations"] = [*(block.get("citations") or ()), delta.get("citation")]
        return
    for name, value in delta.items():
        if name == "type":
            continue
        before = block.get(name)
        if isinstance(value, str):
            if not isinstance(before, Pieces):
                before = block[name] = Pieces([before] if isinstance(before, str) else [])
            before.append(value)
        elif value is not None:
            block[name] = value


def _whole(block: dict[str, Any]) -> dict[str, Any]:
    whole: dict[str, Any] = joined(block)
    written = whole.pop(_PARTIAL, None)
    if written:
        try:
            whole["input"] = lenient_json(written.encode("utf-8", "replace"))
        except ValueError:  # the stream was cut inside the arguments
            whole[_PARTIAL] = written
    return whole
