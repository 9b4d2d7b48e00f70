"""Requests and responses of OpenAI's Chat Completions, and of the older Completions."""

from __future__ import annotations

from typing import Any

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
from coa.distill.importers.content import as_arguments, as_text, at, mappings
from coa.distill.team_run import ToolCall


def read_chat_request(body: Json) -> Asked:
    asked = Asked(model=as_text(body.get("model")) or None)
    system: list[str] = []
    for row in mappings(body.get("messages")):
        role, text = row.get("role"), shown(row.get("content"))
        if role in ("system", "developer") and not asked.pieces:
            system.append(text)
        elif role in ("system", "developer"):
            asked.pieces.append(Piece(PieceKind.SYSTEM, text))
        elif role in ("tool", "function"):
            identity = as_text(row.get("tool_call_id"))
            asked.pieces.append(Piece(PieceKind.RESULT, text, id=identity, name=as_text(row.get("name"))))
        elif role == "assistant":
            asked.pieces += _said(row, text)
        elif text:
            asked.pieces.append(Piece(PieceKind.USER, text, speaker=as_text(row.get("name"))))
    asked.system = "\n\n".join(filter(None, system))
    for tool in (*mappings(body.get("tools")), *mappings(body.get("functions"))):
        inner = next((tool[key] for key in ("function", "custom") if isinstance(tool.get(key), dict)), tool)
        if inner.get("name"):
            asked.tools[str(inner["name"])] = inner.get("parameters") or {}
    return asked


def _said(row: Json, text: str) -> list[Piece]:
    speaker = as_text(row.get("name"))
    said = [Piece(PieceKind.SAID, text, speaker=speaker)] if text else []
    for identity, name, arguments in _calls(row):
        said.append(Piece(PieceKind.CALL, arguments, id=identity, name=name, speaker=speaker))
    return said


def _calls(row: Json) -> list[tuple[str, str, str]]:
    """Id, name and arguments of each call of a message."""
    found = []
    older = [{"function": row["function_call"]}] if isinstance(row.get("function_call"), dict) else []
    for call in (*mappings(row.get("tool_calls")), *older):
        inner: Any = call.get("function") or call.get("custom") or call
        given = inner.get("arguments", inner.get("input"))
        found.append((as_text(call.get("id")), as_text(inner.get("name")), as_text(given)))
    return [call for call in found if call[1]]


def read_chat_response(body: Json, identity: str) -> Answered:
    usage = body.get("usage")
    cached = count(at(usage, "prompt_tokens_details", "cached_tokens"))
    answered = Answered(
        id=as_text(body.get("id")),
        usage=metered(
            usage, prompt=("prompt_tokens",), completion=("completion_tokens",), cached=cached, cost=at(usage, "cost")
        ),
        model=as_text(body.get("model")) or None,
        error=_error(body),
    )
    for choice in mappings(body.get("choices")):
        message = choice.get("message")
        row: Json = message if isinstance(message, dict) else {"content": choice.get("text")}
        text = shown(row.get("content")) or as_text(row.get("refusal"))
        calls = [ToolCall(id=i, name=name, arguments=as_arguments(given)) for i, name, given in _calls(row)]
        thought = as_text(row.get("reasoning_content") or row.get("reasoning"))
        reply = Reply(_said(row, text), text, thought, clean(calls, identity), sampled_in(body, choice))
        answered.choices.append(reply)
    return answered


def read_completions_request(body: Json) -> Asked:
    """A bare prompt: one piece, so that a later prompt which repeats it is not recognised as its continuation."""
    prompt = body.get("prompt")
    ids = isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], str)
    asked = Asked(model=as_text(body.get("model")) or None)
    if ids:
        asked.other = "its prompt is token ids, not text"
    elif isinstance(prompt, list) and len(prompt) > 1:
        asked.other = "it is a batch of prompts"
    else:
        text = as_text(prompt)
        asked.pieces = [Piece(PieceKind.USER, text)] if text else []
    return asked


def _error(body: Json) -> str | None:
    error = body.get("error")
    return as_text(at(error, "message") or error) or None if error else None


def sampled_in(body: Json, choice: Json) -> dict[str, Any] | None:
    """Token ids and log probabilities as vLLM, SGLang and llama.cpp give them."""
    found: dict[str, Any] = {}
    prompt = next(
        (row["prompt_token_ids"] for row in (choice, body) if isinstance(row.get("prompt_token_ids"), list)), None
    )
    ids: object = choice.get("token_ids")
    logprobs = choice.get("logprobs")
    entries = mappings(at(logprobs, "content"))
    meta = at(choice, "meta_info", "output_token_logprobs") or at(body, "meta_info", "output_token_logprobs")
    values: list[Any] = [entry.get("logprob") for entry in entries]
    if not values and isinstance(at(logprobs, "token_logprobs"), list):
        values = at(logprobs, "token_logprobs")
    if not isinstance(ids, list) and entries and all(isinstance(entry.get("id"), int) for entry in entries):
        ids = [entry["id"] for entry in entries]
    if (
        not isinstance(ids, list)
        and isinstance(meta, list)
        and all(isinstance(pair, list) and len(pair) > 1 for pair in meta)
    ):
        ids, values = [pair[1] for pair in meta], [pair[0] for pair in meta]
    if isinstance(prompt, list):
        found["prompt_ids"] = prompt
    if isinstance(ids, list) and ids:
        found["ids"] = ids
    if values and all(isinstance(value, int | float) for value in values):
        found["logprobs"] = values
    return found or None
