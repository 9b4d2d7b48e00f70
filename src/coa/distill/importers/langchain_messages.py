"""Messages of LangChain and LangGraph, in the three ways in which their state is dumped, as chat messages.

messages_to_dict(messages)    {"type": "ai", "data": {"content": ..., "tool_calls": [...]}}
dumpd(message)                {"lc": 1, "type": "constructor", "id": [..., "AIMessage"], "kwargs": {"content": ...}}
message.model_dump()          {"type": "ai", "content": ..., "tool_calls": [...]}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from coa.distill.importers.content import as_calls, as_text, at, loaded, mappings

Json = Mapping[str, Any]
TYPES: Final = {"human": "user", "ai": "assistant", "AIMessageChunk": "assistant", "system": "system", "tool": "tool"}


def is_langchain(row: object) -> bool:
    if not isinstance(row, Mapping):
        return False
    if isinstance(row.get("kwargs"), Mapping) and "lc" in row:
        return str((row.get("id") or [""])[-1]).endswith(("Message", "MessageChunk"))
    data = row.get("data")
    inner = data if isinstance(data, Mapping) else row
    return row.get("type") in TYPES and "content" in inner and "role" not in row


def from_langchain(row: Json) -> Json:
    """The message in OpenAI's form; any other message as it is."""
    if not is_langchain(row):
        return row
    inner: Json = row["kwargs"] if "lc" in row else row.get("data", row)
    kind = str(inner.get("type") or row.get("type"))
    more, about = inner.get("additional_kwargs"), inner.get("response_metadata")
    found = {
        **inner,
        "role": TYPES.get(kind, kind),
        "tool_calls": inner.get("tool_calls") or at(more, "tool_calls"),
        "model": at(about, "model_name"),
        "usage": inner.get("usage_metadata") or at(about, "token_usage"),
    }
    if thought := as_text(at(more, "reasoning_content")):
        found["reasoning_content"] = thought
    return found


def messages_in(value: object) -> list[Json]:
    """A list of messages, which LangChain lets be pairs of a role and a text; nothing where it is anything else."""
    found: list[Json] = []
    for item in value if isinstance(value, list) else ():
        pair = isinstance(item, list) and len(item) == 2 and all(isinstance(part, str) for part in item)
        if pair:
            item = {"role": TYPES.get(item[0], item[0]), "content": item[1]}
        if not isinstance(item, Mapping):
            return []
        found.append(from_langchain(item))
    return found


def is_handoff_back(message: Json) -> bool:
    """Whether langgraph-supervisor wrote it in the name of an agent, or of its tool, to give control back."""
    if at(message, "response_metadata", "__is_handoff_back"):
        return True
    said = as_text(message.get("content"))
    if message.get("role") == "tool":
        return said.startswith("Successfully transferred back to ")
    calls = as_calls(message.get("tool_calls"))
    back = len(calls) == 1 and calls[0].name.startswith("transfer_back_to_")
    return back and said.startswith("Transferring back to ")


def tool_messages(value: object) -> list[Json]:
    """Results of tools in what a tool or a node of a graph returned: messages, or a command that holds messages."""
    value = loaded(value)
    if isinstance(value, list):
        return [message for item in value for message in tool_messages(item)]
    if not isinstance(value, Mapping):
        return []
    if is_langchain(value):
        message = from_langchain(value)
        return [message] if message.get("role") == "tool" and not is_handoff_back(message) else []
    below = (value.get(name) for name in ("output", "outputs", "update", "messages"))
    return [message for item in below for message in tool_messages(item)]


def generated(body: Json) -> Json | None:
    """The message in what a LangChain model returned, a list of generations for each prompt."""
    rows = body.get("generations")
    first = rows[0] if isinstance(rows, list) and rows else None
    found = mappings(first if isinstance(first, list) else rows)
    return next((row["message"] for row in found if isinstance(row.get("message"), Mapping)), None)
