"""Messages of PydanticAI (`result.all_messages_json()`) as chat messages.

A request holds everything that was sent since the last response, as parts: instructions, the user's prompt, and what
tools returned. So it becomes several messages. A response is one message, plus one for each result of a tool that the
model's provider ran itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from coa.distill.importers.content import as_text, at, mappings

Json = Mapping[str, Any]
_FAILED: Final = frozenset({"failed", "denied", "retried", "interrupted"})


def is_pydantic(row: object) -> bool:
    if not isinstance(row, Mapping) or row.get("kind") not in ("request", "response"):
        return False
    parts = row.get("parts")
    return isinstance(parts, list) and all(isinstance(part, Mapping) and "part_kind" in part for part in parts)


def from_pydantic(row: Json) -> list[Json]:
    """The messages in OpenAI's form."""
    parts, time = mappings(row.get("parts")), row.get("timestamp")
    if row["kind"] == "response":
        return [_reply(row, parts), *(_returned(part) for part in parts if _kind(part).endswith("tool-return"))]
    rules = as_text(row.get("instructions"))
    found: list[Json] = [{"role": "system", "content": rules}] if rules else []
    for part in parts:
        kind = _kind(part)
        if kind.endswith("tool-return") or (kind == "retry-prompt" and part.get("tool_name")):
            found.append(_returned(part))
        elif part.get("content") is not None:
            role = "system" if kind == "system-prompt" else "user"
            found.append({"role": role, "content": part["content"], "timestamp": part.get("timestamp") or time})
    return found


def _kind(part: Json) -> str:
    return str(part.get("part_kind"))


def _reply(row: Json, parts: list[Json]) -> Json:
    def texts(kind: str) -> str:
        return "\n".join(filter(None, (as_text(part.get("content")) for part in parts if _kind(part) == kind)))

    calls = [part for part in parts if _kind(part).endswith("tool-call")]
    return {
        "role": "assistant",
        "content": texts("text"),
        "reasoning_content": texts("thinking"),
        "tool_calls": [
            {"id": part.get("tool_call_id"), "name": part.get("tool_name"), "args": part.get("args")} for part in calls
        ],
        "usage": row.get("usage"),
        "model": row.get("model_name"),
        "timestamp": row.get("timestamp"),
    }


def _returned(part: Json) -> Json:
    """What came back for a call. What the model is asked to correct is an error."""
    failed = part.get("outcome") in _FAILED or _kind(part) == "retry-prompt" or at(part, "retry") is not None
    status = "error" if failed else "success"
    message = {"role": "tool", "tool_call_id": part.get("tool_call_id"), "content": part.get("content")}
    return {**message, "timestamp": part.get("timestamp"), "status": status}
