"""Chat Completions and Completions: chunks whose `delta` (or `text`) is added to what came before.

Fields that a server adds to the protocol (`reasoning_content`, `token_ids`, `prompt_token_ids`) are joined by the same
rules: texts are added up, lists go on, parts with an `index` find their place, and anything else is replaced.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from coa.distill.gateway.assembled import Assembled, Pieces, error_text, joined
from coa.distill.gateway.sse import DONE

_REPEATED: Final = frozenset({"id", "type", "role", "format"})
"""Texts that are sent whole; servers may repeat them in every chunk."""


def assemble_chat(found: Iterable[Any]) -> Assembled:
    return _assemble(found, "chat.completion")


def assemble_completion(found: Iterable[Any]) -> Assembled:
    return _assemble(found, "text_completion")


def _assemble(found: Iterable[Any], kind: str) -> Assembled:
    body: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    done, error = False, None
    for event in found:
        if event is DONE:
            done = True
        elif isinstance(event, dict):
            for name, value in event.items():
                if name == "choices":
                    _add_choices(choices, value)
                elif name == "error" and value:
                    body["error"], error = value, error_text(value)
                elif value is not None or name not in body:
                    body[name] = value
    body["object"] = kind
    body["choices"] = [_whole(choices[at], kind) for at in sorted(choices)]
    ended = done or (bool(choices) and all(choice.get("finish_reason") for choice in choices.values()))
    return Assembled(body, complete=ended and error is None, error=error)


def _add_choices(choices: dict[int, dict[str, Any]], new: Any) -> None:
    for choice in new if isinstance(new, list) else ():
        if not isinstance(choice, dict):
            continue
        at = choice.get("index")
        target = choices.setdefault(at if isinstance(at, int) else 0, {"index": at if isinstance(at, int) else 0})
        for name, value in choice.items():
            if name in ("delta", "message"):
                if isinstance(value, dict):
                    _add(target.setdefault("message", {}), value)
            elif name == "logprobs" and isinstance(value, dict):
                if not isinstance(target.get(name), dict):
                    target[name] = {}
                for inner, part in value.items():
                    _add_value(target[name], inner, part)
            elif name in ("text", "token_ids"):
                _add_value(target, name, value)
            elif value is not None or name not in target:
                target[name] = value


def _add(target: dict[str, Any], delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        _add_value(target, name, value)


def _add_value(target: dict[str, Any], name: str, value: Any) -> None:
    before = target.get(name)
    if value is None:
        target.setdefault(name, None)
    elif isinstance(value, str):
        if name in _REPEATED:
            target[name] = value or before or value
        elif not isinstance(before, Pieces):
            target[name] = Pieces([value])
        elif name != "name" or value != "".join(before):
            before.append(value)
    elif isinstance(value, list):
        if not isinstance(before, list) or isinstance(before, Pieces):
            before = target[name] = []
        _extend(before, value)
    elif isinstance(value, dict):
        if not isinstance(before, dict):
            before = target[name] = {}
        _add(before, value)
    else:
        target[name] = value


def _extend(items: list[Any], new: list[Any]) -> None:
    for item in new:
        if not isinstance(item, dict) or "index" not in item:
            items.append(item)
            continue
        before = next(
            (one for one in reversed(items) if isinstance(one, dict) and one.get("index") == item["index"]), None
        )
        identity = item.get("id")
        if before is None or (identity and before.get("id") not in (None, "", identity)):
            # Some servers give every call of a reply the index 0: another id is another call.
            before = {}
            items.append(before)
        _add(before, item)


def _whole(choice: dict[str, Any], kind: str) -> dict[str, Any]:
    whole: dict[str, Any] = joined(choice)
    if kind == "chat.completion":
        message = {"role": "assistant", "content": None, **whole.get("message", {})}
        for call in message.get("tool_calls") or ():
            if isinstance(call, dict):
                call.pop("index", None)
        whole["message"] = message
    whole.setdefault("finish_reason", None)
    return whole
