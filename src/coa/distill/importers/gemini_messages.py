"""Contents of Google's Gemini API, which Google ADK keeps in its sessions and spans, as messages of OpenAI's form.

A content is a role and a list of parts without a type: text, a text marked as thought, a function call or a function's
response. Names are in snake case where Python wrote them and in camel case where the API did.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeGuard

from coa.distill.importers.content import as_text, at, mappings

Json = Mapping[str, Any]
_PARTS: Final = frozenset(
    {"text", "thought", "thought_signature", "thoughtSignature", "function_call", "functionCall", "function_response"}
    | {"functionResponse", "inline_data", "inlineData", "file_data", "fileData", "executable_code", "executableCode"}
    | {"code_execution_result", "codeExecutionResult"}
)


def is_gemini(row: object) -> TypeGuard[Json]:
    """Whether it is a content. Messages of the GenAI conventions have parts too; theirs have a type."""
    parts = row.get("parts") if isinstance(row, Mapping) else None
    return isinstance(parts, list) and bool(parts) and all(_is_part(part) for part in parts)


def _is_part(part: object) -> bool:
    return isinstance(part, Mapping) and "type" not in part and not _PARTS.isdisjoint(part)


def from_gemini(row: Json) -> Json:
    """A content as a message with blocks; anything else as it is."""
    if not is_gemini(row):
        return row
    blocks, calls, thoughts = list[Json](), list[Json](), list[str]()
    for part in mappings(row["parts"]):
        call, response = _either(part, "function_call"), _either(part, "function_response")
        if isinstance(call, Mapping):
            calls.append({"id": call.get("id"), "name": call.get("name"), "arguments": call.get("args")})
        elif isinstance(response, Mapping):
            blocks.append({"type": "tool_result", "tool_use_id": response.get("id"), "content": response})
        elif part.get("thought") is True:
            thoughts.append(as_text(part.get("text")))
        elif isinstance(part.get("text"), str):
            blocks.append({"type": "text", "text": part["text"]})
        else:
            kind = next((name for name in part if name in _PARTS and not name.startswith("thought")), "part")
            blocks.append({"type": "text", "text": f"[{kind}]"})
    role = "assistant" if row.get("role") == "model" else row.get("role") or "user"
    return {"role": role, "content": blocks, "reasoning_content": "\n".join(thoughts), "tool_calls": calls}


def declared_tools(config: object) -> list[Json]:
    """The functions that a request offers to the model."""
    tools = mappings(at(config, "tools"))
    return [one for tool in tools for one in mappings(_either(tool, "function_declarations"))]


def as_gemini_usage(row: object) -> Json:
    """Token counts under the names of OpenAI. Thoughts are billed with the reply and counted apart."""
    if not isinstance(row, Mapping):
        return {}
    found = {name: _either(row, f"{name}_token_count") for name in ("prompt", "candidates", "thoughts")}
    cached = _either(row, "cached_content_token_count")
    counts = [found[name] for name in ("candidates", "thoughts") if isinstance(found[name], int)]
    written = {"completion_tokens": sum(counts)} if counts else {}
    return {"prompt_tokens": found["prompt"], **written, "cached_tokens": cached}


def _either(row: Json, name: str) -> Any:
    head, *rest = name.split("_")
    return row.get(name, row.get(head + "".join(word.capitalize() for word in rest)))
