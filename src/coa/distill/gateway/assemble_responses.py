"""OpenAI Responses: the last event has the whole response. Where it is missing, the items are put together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from coa.distill.gateway.assembled import Assembled, Pieces, error_text, joined

_LAST: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})
_PARTS: Final = {
    "response.output_text": ("content", "content_index", "text", "output_text"),
    "response.refusal": ("content", "content_index", "refusal", "refusal"),
    "response.reasoning_text": ("content", "content_index", "text", "reasoning_text"),
    "response.reasoning_summary_text": ("summary", "summary_index", "text", "summary_text"),
}
"""Which list of an item a text belongs to, which field says where in it, and what its part is called."""
_FIELDS: Final = {
    "response.function_call_arguments": "arguments", "response.mcp_call_arguments": "arguments",
    "response.custom_tool_call_input": "input", "response.code_interpreter_call_code": "code",
}  # fmt: skip


def assemble(found: Iterable[Any]) -> Assembled:
    body: dict[str, Any] = {}
    items: dict[int, dict[str, Any]] = {}
    finished: dict[int, dict[str, Any]] = {}
    complete, error = False, None
    for event in found:
        if not isinstance(event, dict):
            continue
        kind, at = str(event.get("type", "")), event.get("output_index")
        if isinstance(event.get("response"), dict):
            body = {**body, **event["response"]}
            complete = complete or kind in _LAST
        if kind == "error" or (not kind and event.get("error")):
            error = error_text(event.get("error") or event)
        elif not isinstance(at, int):
            continue
        elif kind == "response.output_item.added" and isinstance(event.get("item"), dict):
            items[at] = dict(event["item"])
        elif kind == "response.output_item.done" and isinstance(event.get("item"), dict):
            finished[at] = event["item"]
        elif kind.endswith(".delta"):
            _add(items.setdefault(at, {}), kind.removesuffix(".delta"), event)
    if not body.get("output"):
        merged = {**items, **finished}
        body["output"] = [joined(merged[at]) for at in sorted(merged)]
    if error is None and isinstance(body.get("error"), dict):
        error = error_text(body["error"])
    return Assembled(body, complete=complete and error is None, error=error)


def _add(item: dict[str, Any], kind: str, event: dict[str, Any]) -> None:
    delta = event.get("delta")
    if not isinstance(delta, str):
        return
    if kind in _FIELDS:
        _append(item, _FIELDS[kind], delta)
    elif kind in _PARTS:
        place, where, field, named = _PARTS[kind]
        parts = item[place] = list(item.get(place) or ())
        at = event.get(where)
        if not isinstance(at, int) or not 0 <= at < len(parts):  # parts come one after another
            at = len(parts)
            parts.append({"type": named})
        _append(parts[at], field, delta)


def _append(target: dict[str, Any], name: str, text: str) -> None:
    before = target.get(name)
    if not isinstance(before, Pieces):
        before = target[name] = Pieces([before] if isinstance(before, str) else [])
    before.append(text)
