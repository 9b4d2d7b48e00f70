"""Requests and responses of OpenAI's Responses API."""

from __future__ import annotations

from coa.distill.importers.calls.exchange import (
    Answered,
    Asked,
    Json,
    Piece,
    PieceKind,
    Reply,
    clean,
    count,
    metered,
    shown,
)
from coa.distill.importers.content import as_arguments, as_text, at, dumped, mappings
from coa.distill.team_run import ToolCall

_ARGUMENTS = ("arguments", "input", "action", "queries", "code", "query")
_OUTPUTS = ("output", "results", "outputs", "result")


def read_responses_request(body: Json) -> Asked:
    conversation = body.get("conversation")
    asked = Asked(
        model=as_text(body.get("model")) or None,
        previous=as_text(body.get("previous_response_id") or at(conversation, "id") or conversation) or None,
    )
    given = body.get("input")
    rows = [{"role": "user", "content": given}] if isinstance(given, str) else mappings(given)
    system = [shown(body.get("instructions"))]
    for row in rows:
        kind = row.get("type") or "message"
        if kind != "message":
            asked.pieces += _pieces(row)
            continue
        text, role = shown(row.get("content")), row.get("role")
        if role in ("system", "developer") and not asked.pieces:
            system.append(text)
        elif text:
            kinds = {"assistant": PieceKind.SAID, "system": PieceKind.SYSTEM, "developer": PieceKind.SYSTEM}
            asked.pieces.append(Piece(kinds.get(str(role), PieceKind.USER), text))
    asked.system = "\n\n".join(filter(None, system))
    for tool in mappings(body.get("tools")):
        # Tools that the server runs (web_search, mcp) have no name of their own.
        name = tool.get("name") or tool.get("server_label") or tool.get("type")
        if name:
            asked.tools[str(name)] = tool.get("parameters") or {}
    return asked


def _pieces(row: Json) -> list[Piece]:
    """An item that is no message."""
    kind = str(row.get("type"))
    identity = as_text(row.get("call_id") or row.get("id"))
    if kind in ("reasoning", "item_reference", "compaction") or kind.startswith("mcp_list"):
        return []
    if kind.endswith("_call_output"):
        return [Piece(PieceKind.RESULT, shown(row.get("output")), id=identity)]
    if kind.endswith("_call"):
        name, arguments = _called(row, kind)
        pieces = [Piece(PieceKind.CALL, arguments, id=identity, name=name)]
        output, failed = _output(row)
        return pieces if output is None else [*pieces, Piece(PieceKind.RESULT, output, id=identity, ok=not failed)]
    return []


def _called(row: Json, kind: str) -> tuple[str, str]:
    """Name and arguments. A call of a tool that the server runs is named by its type."""
    name = as_text(row.get("name")) or kind.removesuffix("_call")
    given = next((row[key] for key in _ARGUMENTS if row.get(key) is not None), None)
    return name, given if isinstance(given, str) else dumped(given if given is not None else {})


def _output(row: Json) -> tuple[str | None, bool]:
    """The result that stands in the same item: that of a tool which the server ran."""
    error = row.get("error")
    if error:
        return as_text(error), True
    found = next((row[key] for key in _OUTPUTS if row.get(key) is not None), None)
    return (None if found is None else shown(found)), False


def read_responses_response(body: Json, identity: str) -> Answered:
    usage = body.get("usage")
    cached = count(at(usage, "input_tokens_details", "cached_tokens"))
    answered = Answered(
        id=as_text(body.get("id")),
        usage=metered(
            usage, prompt=("input_tokens",), completion=("output_tokens",), cached=cached, cost=at(usage, "cost")
        ),
        model=as_text(body.get("model")) or None,
        error=as_text(at(body, "error", "message") or body.get("error")) or None if body.get("error") else None,
    )
    if not isinstance(body.get("output"), list):
        return answered
    reply, texts, thoughts, calls = Reply(), list[str](), list[str](), list[ToolCall]()
    for row in mappings(body["output"]):
        kind = row.get("type")
        if kind == "message":
            text = shown(row.get("content"))
            texts.append(text)
            reply.pieces += [Piece(PieceKind.SAID, text)] if text else []
        elif kind == "reasoning":
            thoughts.append(shown(row.get("content")) or shown(row.get("summary")))
        else:
            made = _pieces(row)
            reply.pieces += made
            for piece in made:
                if piece.kind is PieceKind.CALL:
                    calls.append(ToolCall(id=piece.id, name=piece.name, arguments=as_arguments(piece.text)))
    reply.text, reply.thought = "\n".join(filter(None, texts)), "\n".join(filter(None, thoughts))
    reply.calls = clean(calls, identity)
    answered.choices.append(reply)
    return answered
