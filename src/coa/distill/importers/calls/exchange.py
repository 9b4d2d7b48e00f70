"""One model call, in whichever protocol it was made: what was asked and what came back, in one form.

A history is a flat list of pieces: words of a user, words of a model, each call, each result. Protocols divide the same
history differently (one message with three calls, four items, one message with four blocks), but the pieces are the
same, in the same order. So the pieces of a request begin with those of an earlier request and its reply exactly where
one continues the other, and a hash of each beginning finds it (`threads.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby
from typing import Any

import orjson

from coa.distill.team_run import ToolCall, reasoning_apart
from coa.trajectory.types import Usage

Json = Mapping[str, Any]


class PieceKind(StrEnum):
    USER = "user"
    SYSTEM = "system"
    """A system message behind the first other message; those before it are the system prompt."""
    SAID = "assistant"
    CALL = "call"
    RESULT = "tool"


@dataclass(frozen=True, slots=True)
class Piece:
    kind: PieceKind
    text: str = ""
    call: ToolCall | None = None
    id: str = ""
    """Of the call that a result answers."""
    speaker: str = ""
    """Where the message names one."""
    ok: bool = True

    def key(self) -> bytes:
        """What stays the same when a framework repeats the piece: no ids, no white space, no order of arguments."""
        if self.call is not None:
            return f"{self.kind}\0{same_call(self.call)}\0".encode(errors="surrogatepass")
        text = self.text
        if self.kind is PieceKind.SAID:
            # Reasoning is often not sent back; smolagents puts back the end of a code block, which the server cut off.
            text = reasoning_apart(text)[1] if "think>" in text else text
            text = text.rstrip().removesuffix("</code>")
        return f"{self.kind}\0{normal(text)}\0".encode(errors="surrogatepass")


def normal(text: str) -> str:
    """For comparing texts: without differences of white space."""
    return " ".join(text.split())


def same_call(call: ToolCall) -> str:
    """A call without its id, for comparing."""
    try:
        return f"{call.name} {orjson.dumps(dict(call.arguments), option=orjson.OPT_SORT_KEYS).decode()}"
    except (TypeError, orjson.JSONEncodeError):
        return f"{call.name} {call.arguments}"


@dataclass(slots=True)
class Request:
    """A request."""

    system: str = ""
    pieces: list[Piece] = field(default_factory=list)
    tools: dict[str, Any] = field(default_factory=dict)
    """Definitions of tools: name -> JSON schema of the arguments."""
    model: str | None = None
    previous: str | None = None
    """The response that this request continues without repeating it."""
    conversation: str | None = None
    """The conversation that the server keeps, and that this request continues."""
    other: str = ""
    """Why this is no call of a language model, where it is none."""


@dataclass(slots=True)
class Reply:
    """What a model wrote: one choice of a response."""

    pieces: list[Piece] = field(default_factory=list)
    """As later requests repeat it."""
    text: str = ""
    thought: str = ""
    calls: tuple[ToolCall, ...] = ()
    sampled: dict[str, Any] | None = None
    answer: str | None = None
    """What it hands in by a finishing tool, or as its text says (`Final Answer:`)."""
    finishing: frozenset[str] = frozenset()
    """Ids of the calls that only hand in the answer; they are in no `calls`."""


@dataclass(slots=True)
class Answered:
    """A response."""

    id: str = ""
    choices: list[Reply] = field(default_factory=list)
    usage: Usage | None = None
    model: str | None = None
    error: str | None = None


def in_order(pieces: Iterable[Piece]) -> list[Piece]:
    """Calls that stand together in one order: a framework may repeat those of one reply in another."""
    found: list[Piece] = []
    for calls, group in groupby(pieces, key=lambda piece: piece.kind is PieceKind.CALL):
        items = list(group)
        found += sorted(items, key=Piece.key) if calls else items
    return found


def hashes(pieces: Sequence[Piece], start: bytes = b"") -> Iterator[bytes]:
    """A hash of each beginning of a history: nothing, the first piece, the first two, ..."""
    current = start
    yield current
    for piece in pieces:
        current = hashlib.blake2b(current + piece.key(), digest_size=16).digest()
        yield current


def after(start: bytes, pieces: Sequence[Piece]) -> bytes:
    *_, last = hashes(pieces, start)
    return last
