"""Calls and results that are written in the text instead of in the protocol's own fields.

Some frameworks spell actions out (`Action:`, `Action Input:`, `Observation:`), and smolagents repeats native calls as
text in the history. Both are brought into the form of native calls, so that no later step has to know about them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Final

from coa.distill.importers.calls.exchange import Piece, PieceKind, Reply, Request
from coa.distill.importers.content import FINISHING, as_arguments, as_calls, handed_in, split_code
from coa.distill.importers.smolagents_steps import CODE_TOOL
from coa.distill.team_run import ToolCall, reasoning_apart

_ACTION: Final = re.compile(
    r"^[ \t*#]*Action[ \t*]*:[ \t*]*(?P<name>[^\n]+)\n+[ \t*#]*Action Input[ \t*]*:[ \t]*"
    r"(?P<given>.*?)\s*(?:^[ \t]*Observation[ \t]*:.*)?\Z",
    re.MULTILINE | re.DOTALL,
)
_FINAL: Final = re.compile(r"^[ \t*#]*Final Answer[ \t*]*:[ \t*]*", re.MULTILINE)
_OBSERVATION: Final = re.compile(r"^[ \t]*Observation[ \t]*:[ \t]*", re.MULTILINE)
_CALLING: Final = re.compile(r"(?:\A|\n)Calling tools:\n(\[.*\])\s*\Z", re.DOTALL)
_FAILED: Final = re.compile(
    r"(?:\A|\n)(?:Call id: [^\n]*\n)?Error:\n(?P<why>.*?)(?:\nNow let's retry\b.*)?\Z", re.DOTALL
)
_CODE_PROMPT: Final = re.compile(r"<code>|```py|code blob|final_answer\(")


def expanded(pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces of a history, with calls and results that stand in texts as pieces of their own."""
    found: list[Piece] = []
    for piece in pieces:
        if piece.kind is PieceKind.SAID:
            found += _said(piece)
        elif piece.kind is PieceKind.USER and found and found[-1].kind in (PieceKind.SAID, PieceKind.CALL):
            found += _heard(piece)
        else:
            found.append(piece)
    return found


def _said(piece: Piece) -> list[Piece]:
    action = _ACTION.search(piece.text)
    observed = _OBSERVATION.search(piece.text, action.start()) if action else None
    if observed:
        before, after = piece.text[: observed.start()], piece.text[observed.end() :]
        return [Piece(PieceKind.SAID, before.rstrip(), speaker=piece.speaker), Piece(PieceKind.RESULT, after.strip())]
    calling = _CALLING.search(piece.text) if "Calling tools:\n[" in piece.text else None
    if calling is None:
        return [piece]
    text = piece.text[: calling.start()]
    said = [Piece(PieceKind.SAID, text, speaker=piece.speaker)] if text.strip() else []
    try:
        rows = ast.literal_eval(calling.group(1))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return [piece]
    for call in as_calls(rows):
        if call.name != CODE_TOOL:  # code stands in the text already
            said.append(Piece(PieceKind.CALL, call=call))
    return said


def _heard(piece: Piece) -> list[Piece]:
    """A user's message that is the result of an action."""
    text = piece.text.lstrip()
    if not text.startswith(("Observation:", "Error:\n", "Call id: ")):
        return [piece]
    failed = _FAILED.search(text)
    shown = (text[: failed.start()] if failed else text).removeprefix("Observation:").strip()
    parts = [shown, failed.group("why").strip() if failed else ""]
    return [Piece(PieceKind.RESULT, "\n".join(filter(None, parts)), ok=failed is None)]


def interpreted(reply: Reply, asked: Request, identity: str) -> Reply:
    """The reply with the calls that its text makes, and with the answer that it hands in."""
    if not reply.calls and "Action" in reply.text and (action := _ACTION.search(reply.text)):
        given = as_arguments(action.group("given").strip().strip("`").removeprefix("json").strip())
        call = ToolCall(id=f"{identity}_1", name=action.group("name").strip(" *`"), arguments=given)
        reply.text, reply.calls = reply.text[: action.start()].strip(), (call,)
    elif not reply.calls and (final := _FINAL.search(reply.text)):
        reply.answer, reply.text = reply.text[final.end() :].strip(), reply.text[: final.start()].strip()
    elif not reply.calls and _CODE_PROMPT.search(asked.system):
        _, said = reasoning_apart(reply.text)
        text, block = split_code(said)
        if block is not None:
            reply.thought = "\n\n".join(filter(None, (reply.thought, reasoning_apart(reply.text)[0])))
            call = ToolCall(id=f"{identity}_1", name=CODE_TOOL, arguments={"code": block})
            reply.text, reply.calls, reply.answer = text, (call,), _handed_in(block)
    finishing = [call for call in reply.calls if call.name in FINISHING]
    if finishing:
        reply.answer = handed_in(finishing[-1]) or reply.text
        reply.finishing = frozenset(call.id for call in finishing)
        reply.calls = tuple(call for call in reply.calls if call not in finishing)
    return reply


def _handed_in(code: str) -> str | None:
    """The answer that code hands in, where it is written out."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FINISHING:
            given = [*node.args, *(word.value for word in node.keywords)]
            if given and isinstance(given[0], ast.Constant):
                return str(given[0].value)
    return None
