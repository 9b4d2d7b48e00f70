"""Messages to and from a model, as the APIs of OpenAI and Anthropic and LangChain write them.

Chat Completions has messages, Responses has items, Anthropic has messages of blocks. Traces keep them as sent, so the
readers of spans, of exports and of recorded calls meet all three.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from coa.distill.importers.autogen_messages import from_autogen
from coa.distill.importers.content import as_calls, as_result, as_text, as_thought, at, loaded, mappings, plain
from coa.distill.importers.gemini_messages import from_gemini, is_gemini
from coa.distill.importers.langchain_messages import from_langchain, generated, is_langchain
from coa.distill.team_run import ToolCall

Json = Mapping[str, Any]
ROLES: Final = {"human": "user", "ai": "assistant", "function": "tool", "developer": "system", "model": "assistant"}
_SCHEMAS: Final = ("parameters", "parameters_json_schema", "parametersJsonSchema", "input_schema", "inputSchema")
_BODIES: Final = ("response", "chat.completion")
_CALLS: Final = ("tool_use", "server_tool_use", "mcp_tool_use", "toolCall")
_RESULTS: Final = ("tool_result", "mcp_tool_result", "web_search_tool_result", "function_call_output")


@dataclass(frozen=True)
class Said:
    """One message of a model's input or output."""

    role: str
    text: str = ""
    thought: str = ""
    calls: tuple[ToolCall, ...] = ()
    answers: tuple[tuple[str, str], ...] = ()
    """Results of tools: the call's id and the text."""
    failed: tuple[str, ...] = ()
    """Ids of the calls whose result says that it is an error."""


def said_in(messages: object) -> tuple[Said, ...]:
    """The messages of a request: a list, or the text of a single user."""
    messages = loaded(messages)
    if isinstance(messages, str):
        return (Said("user", messages),) if messages else ()
    return tuple(map(message, mappings(messages)))


def reply_in(body: object) -> tuple[Said, ...]:
    """What a model replied: the body of a reply of any of the APIs, or messages."""
    body = loaded(body)
    if not isinstance(body, Mapping):
        if any(row.get("object") in _BODIES for row in mappings(body)):
            return tuple(said for row in mappings(body) for said in reply_in(row))
        return said_in(body)
    if isinstance(body.get("choices"), list):
        return tuple(
            message({"role": "assistant", **row["message"]}) for row in body["choices"][:1] if at(row, "message")
        )
    if (generation := generated(body)) is not None:
        return (message(generation),)
    if isinstance(body.get("output"), list):
        return said_in(body["output"])
    if is_gemini(body.get("content")):
        return (message(body["content"]),)
    known = "content" in body or "tool_calls" in body or is_langchain(body)
    return (message({"role": "assistant", **body}),) if known else ()


def message(row: Json) -> Said:
    """A message of Chat Completions, Anthropic or LangChain, an item of Responses, or a content of Gemini."""
    row = from_langchain(from_gemini(from_autogen(row)))
    kind = str(row.get("type") or "")
    role = str(row.get("role") or (kind if kind in ROLES else ""))
    role = ROLES.get(role, role)
    if kind == "reasoning":
        return Said("assistant", thought=as_text(row.get("summary")) or as_text(row.get("content")))
    if kind.endswith("_call_output"):
        return Said("tool", answers=((str(row.get("call_id")), as_text(row.get("output"))),))
    if kind.endswith("_call") and not role:
        return _called(row, kind)
    content = row.get("content")
    if role == "tool":
        identity = as_text(row.get("tool_call_id") or row.get("call_id") or row.get("id"))
        text, ok = as_result(content)
        failed = not ok or row.get("status") == "error" or bool(row.get("is_error"))
        return Said(role, text, answers=((identity, text),) if identity else (), failed=(identity,) if failed else ())
    thought = as_text(row.get("reasoning_content") or row.get("reasoning"))
    calls = as_calls(row.get("tool_calls")) or as_calls([row.get("function_call")])
    if not isinstance(content, list):
        return Said(role, as_text(content), thought, calls)
    blocks = _blocks(content)
    return Said(
        role, blocks.text, thought or blocks.thought, calls or blocks.calls, blocks.answers, blocks.failed
    )  # fmt: skip


def _called(row: Json, kind: str) -> Said:
    """A call as an item of Responses: of a function, or of a tool that the server runs itself."""
    hosted = "call_id" not in row
    name = row.get("name") or kind.removesuffix("_call")
    given = row.get("arguments", row.get("input", row.get("action")))
    call = as_calls([{"id": row.get("call_id") or row.get("id"), "name": name, "arguments": given}])
    result = as_text(row.get("error") or row.get("output") or row.get("results"))
    answers = ((call[0].id, result),) if hosted and call and result else ()
    return Said("assistant", calls=call, answers=answers, failed=(call[0].id,) if answers and row.get("error") else ())


def _blocks(content: list[Any]) -> Said:
    texts, thoughts, calls, answers, failed = [], [], [], [], []
    for part in content:
        kind = str(part.get("type") or "") if isinstance(part, Mapping) else ""
        if kind in ("thinking", "reasoning"):
            thoughts.append(as_thought([part]))
        elif kind == "redacted_thinking":
            continue
        elif kind in _CALLS:
            calls.append(part)
        elif kind in _RESULTS:
            identity = as_text(part.get("tool_use_id") or part.get("call_id"))
            text, ok = as_result(part.get("content", part.get("output")))
            answers.append((identity, text))
            failed += [identity] if part.get("is_error") or not ok else []
        else:
            texts.append(as_text([part]))
    text, thought = ("\n".join(filter(None, found)) for found in (texts, thoughts))
    return Said("", text, thought, as_calls(calls), tuple(answers), tuple(failed))


def definitions_in(tools: object) -> dict[str, Any]:
    """The parameters of each tool that a model was offered, as JSON schema with the description of the tool."""
    found: dict[str, Any] = {}
    for row in mappings(loaded(tools)):
        function = row.get("function")
        inner: Json = function if isinstance(function, Mapping) else row
        schema = next((inner[name] for name in _SCHEMAS if inner.get(name) is not None), None)
        if inner.get("name") and isinstance(schema := loaded(schema), Mapping):
            described = {"description": inner["description"]} if inner.get("description") else {}
            found[str(inner["name"])] = plain({**described, **schema})
    return found
