"""Requests and responses of Chat Completions, Completions, Responses and Anthropic's Messages, as pieces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from coa.distill.importers.calls.exchange import Answered, Json, Piece, PieceKind, Reply, Request
from coa.distill.importers.content import as_text, as_usage, at, mappings
from coa.distill.importers.messages import Said, definitions_in, message
from coa.distill.team_run import ToolCall

_KINDS: Final = {"assistant": PieceKind.SAID, "system": PieceKind.SYSTEM, "tool": PieceKind.RESULT}
_SILENT: Final = frozenset({"item_reference", "compaction", "mcp_list_tools"})
"""Items of Responses that say nothing themselves."""


def read_request(protocol: str, body: Json) -> Request:
    asked = Request(model=as_text(body.get("model")) or None)
    match protocol:
        case "chat":
            rows = mappings(body.get("messages"))
        case "messages":
            rows = mappings(body.get("messages"))
            asked.system = as_text(body.get("system"))
        case "responses":
            given, conversation = body.get("input"), body.get("conversation")
            rows = [{"role": "user", "content": given}] if isinstance(given, str) else mappings(given)
            asked.system = as_text(body.get("instructions"))
            asked.previous = as_text(body.get("previous_response_id")) or None
            asked.conversation = as_text(at(conversation, "id") or conversation) or None
        case "completions":
            rows = _prompt(body.get("prompt"), asked)
        case _:
            rows, asked.other = [], "it is not a call of a language model"
    system = [asked.system]
    for row in rows:
        made = _pieces(row)
        if made and made[0].kind is PieceKind.SYSTEM and not asked.pieces:
            system.append(made[0].text)
        else:
            asked.pieces += made
    asked.system = "\n\n".join(filter(None, system))
    tools = [*mappings(body.get("tools")), *mappings(body.get("functions"))]
    asked.tools = {name: {} for tool in tools if (name := _tool_name(tool))} | definitions_in(tools)
    return asked


def _tool_name(tool: Json) -> str:
    """Tools that the server runs itself, such as a web search, have a type and may have no name."""
    inner = next((tool[key] for key in ("function", "custom") if isinstance(tool.get(key), Mapping)), tool)
    return as_text(inner.get("name") or tool.get("server_label") or tool.get("type"))


def _prompt(prompt: object, asked: Request) -> list[Json]:
    """A bare prompt is what a user says: a later prompt that repeats it is not recognised as its continuation."""
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], str):
        asked.other = "its prompt is token ids, not text"
        return []
    if isinstance(prompt, list) and len(prompt) > 1:
        asked.other = "it is a batch of prompts"
        return []
    return [{"role": "user", "content": as_text(prompt)}]


def _pieces(row: Json) -> list[Piece]:
    if row.get("type") in _SILENT:
        return []
    # On an item that is no message, the name is that of a tool.
    return pieces_of(message(row), as_text(row.get("name")) if row.get("role") else "")


def pieces_of(said: Said, speaker: str = "") -> list[Piece]:
    """A message in pieces: its words, its calls, and the results that it brings."""
    kind = _KINDS.get(said.role, PieceKind.USER)
    words = said.text if kind is not PieceKind.RESULT else ""
    found = [Piece(kind, words, speaker=speaker)] if words else []
    found += [Piece(PieceKind.CALL, call=call, speaker=speaker) for call in said.calls]
    answers = said.answers or ((("", said.text),) if kind is PieceKind.RESULT else ())
    results = [Piece(PieceKind.RESULT, text, id=one, ok=one not in said.failed) for one, text in answers]
    # Anthropic's users answer calls before they say anything else.
    return [*results, *found] if said.role == "user" else [*found, *results]


def read_response(protocol: str, body: Json, identity: str) -> Answered:
    error = body.get("error")
    answered = Answered(
        id=as_text(body.get("id")),
        usage=as_usage(body.get("usage")),
        model=as_text(body.get("model")) or None,
        error=as_text(at(error, "message") or error) or None if error else None,
    )
    for said, choice in _replies(protocol, body):
        reply = Reply(
            pieces=[piece for each in said for piece in pieces_of(each)],
            text="\n".join(each.text for each in said if each.text),
            thought="\n".join(each.thought for each in said if each.thought),
            calls=_numbered([call for each in said for call in each.calls], identity),
            sampled=sampled_in(body, choice),
        )
        answered.choices.append(reply)
    return answered


def _replies(protocol: str, body: Json) -> Iterable[tuple[Sequence[Said], Json]]:
    """The messages of each choice, with the choice."""
    if protocol == "responses":
        rows = [row for row in mappings(body.get("output")) if row.get("type") not in _SILENT]
        said = [message({"role": "assistant", **row} if row.get("type") == "message" else row) for row in rows]
        return [(said, {})] if isinstance(body.get("output"), list) else []
    if protocol == "messages":
        known = isinstance(body.get("content"), list)
        return [([message({"role": "assistant", "content": body["content"]})], {})] if known else []
    found = []
    for choice in mappings(body.get("choices")):
        row = choice.get("message")
        inner = row if isinstance(row, Mapping) else {"content": choice.get("text")}
        content = inner.get("content") or inner.get("refusal")
        found.append(([message({**inner, "role": "assistant", "content": content})], choice))
    return found


def _numbered(calls: Sequence[ToolCall], prefix: str) -> tuple[ToolCall, ...]:
    """Ids are unique within a reply."""
    taken: set[str] = set()
    found = []
    for number, call in enumerate(calls, start=1):
        identity = f"{prefix}_{number}" if not call.id or call.id in taken else call.id
        taken.add(identity)
        found.append(call if identity == call.id else call.model_copy(update={"id": identity}))
    return tuple(found)


def sampled_in(body: Json, choice: Json) -> dict[str, Any] | None:
    """Token ids and log probabilities as vLLM, SGLang and llama.cpp give them."""
    entries = mappings(at(choice, "logprobs", "content"))
    pairs = at(choice, "meta_info", "output_token_logprobs")
    pairs = [pair for pair in pairs if isinstance(pair, list) and len(pair) > 1] if isinstance(pairs, list) else []
    ids = choice.get("token_ids") or [entry.get("id") for entry in entries] or [pair[1] for pair in pairs]
    logprobs = [entry.get("logprob") for entry in entries] or at(choice, "logprobs", "token_logprobs")
    found = {
        "prompt_ids": choice.get("prompt_token_ids") or body.get("prompt_token_ids"),
        "ids": ids,
        "logprobs": logprobs or [pair[0] for pair in pairs],
    }
    kept = {name: value for name, value in found.items() if _numbers(value)}
    return kept or None


def _numbers(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, int | float) for item in value)
