"""Requests and responses of Anthropic's Messages."""

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

_PROMPT = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
"""`input_tokens` counts only what neither came from the cache nor went into it."""


def read_messages_request(body: Json) -> Asked:
    asked = Asked(model=as_text(body.get("model")) or None, system=shown(body.get("system")))
    for row in mappings(body.get("messages")):
        role, content = row.get("role"), row.get("content")
        if role == "system" and not asked.pieces:
            asked.system = "\n\n".join(filter(None, (asked.system, shown(content))))
            continue
        blocks = mappings(content) if isinstance(content, list) else [{"type": "text", "text": as_text(content)}]
        for block in blocks:
            asked.pieces += _pieces(block, str(role))
    for tool in mappings(body.get("tools")):
        if tool.get("name"):
            asked.tools[str(tool["name"])] = tool.get("input_schema") or {}
    return asked


def _pieces(block: Json, role: str) -> list[Piece]:
    kind = str(block.get("type"))
    if kind in ("thinking", "redacted_thinking", "fallback"):
        return []
    if kind.endswith("tool_use"):
        return [Piece(PieceKind.CALL, dumped(block.get("input") or {}), id=as_text(block.get("id")), name=_name(block))]
    if kind.endswith("tool_result"):
        text, failed = shown(block.get("content")), bool(block.get("is_error"))
        failed = failed or str(at(block, "content", "type")).endswith("_error")
        return [Piece(PieceKind.RESULT, text, id=as_text(block.get("tool_use_id")), ok=not failed)]
    text = shown([block])
    speaker = {"assistant": PieceKind.SAID, "system": PieceKind.SYSTEM}.get(role, PieceKind.USER)
    return [Piece(speaker, text)] if text else []


def _name(block: Json) -> str:
    return as_text(block.get("name")) or "tool"


def read_messages_response(body: Json, identity: str) -> Answered:
    usage = body.get("usage")
    answered = Answered(
        id=as_text(body.get("id")),
        usage=metered(
            usage, prompt=_PROMPT, completion=("output_tokens",), cached=count(at(usage, "cache_read_input_tokens")),
            cost=at(usage, "cost"),
        ),
        model=as_text(body.get("model")) or None,
        error=as_text(at(body, "error", "message") or body.get("error")) or None if body.get("error") else None,
    )  # fmt: skip
    if not isinstance(body.get("content"), list):
        return answered
    reply, texts, thoughts, calls = Reply(), list[str](), list[str](), list[ToolCall]()
    for block in mappings(body["content"]):
        if block.get("type") == "thinking":
            thoughts.append(as_text(block.get("thinking")))
            continue
        for piece in _pieces(block, "assistant"):
            reply.pieces.append(piece)
            if piece.kind is PieceKind.CALL:
                calls.append(ToolCall(id=piece.id, name=piece.name, arguments=as_arguments(piece.text)))
            elif piece.kind is PieceKind.SAID:
                texts.append(piece.text)
    reply.text, reply.thought = "\n".join(texts), "\n".join(filter(None, thoughts))
    reply.calls = clean(calls, identity)
    answered.choices.append(reply)
    return answered
