"""One model call, in whichever protocol it was made: what was asked and what came back, in one form.

A history is a flat list of pieces: words of a user, words of a model, each call, each result. Protocols divide the same
history differently (one message with three calls, four items, one message with four blocks), but the pieces are the
same, in the same order. So the pieces of a request begin with those of an earlier request and its reply exactly where
one continues the other, and a hash of each beginning finds it (`threads.py`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby
from typing import Any, Final

import orjson

from coa.distill.importers.content import as_text, loaded
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
    """Of a call: its arguments as the protocol has them, as text."""
    id: str = ""
    """The id of a call, or of the call that a result answers."""
    name: str = ""
    """The tool of a call."""
    speaker: str = ""
    """Where the message names one."""
    ok: bool = True

    def key(self) -> bytes:
        """What stays the same when a framework repeats the piece: no ids, no white space, no order of arguments."""
        return f"{self.kind}\0{self.name if self.kind is PieceKind.CALL else ''}\0{self._normal()}\0".encode(
            errors="surrogatepass"
        )

    def _normal(self) -> str:
        if self.kind is PieceKind.CALL:
            return same_arguments(self.text)
        if self.kind is not PieceKind.SAID:
            return normal(self.text)
        # Reasoning is often not sent back; and smolagents puts back the end of a code block, which the server cut off.
        text = reasoning_apart(self.text)[1] if "think>" in self.text else self.text
        return normal(text.rstrip().removesuffix("</code>"))


def normal(text: str) -> str:
    """For comparing texts: without differences of white space."""
    return " ".join(text.split())


def same_arguments(text: str) -> str:
    value = loaded(text)
    if isinstance(value, str):
        return normal(value)
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except (TypeError, orjson.JSONEncodeError):
        return normal(text)


@dataclass(slots=True)
class Asked:
    """A request."""

    system: str = ""
    pieces: list[Piece] = field(default_factory=list)
    tools: dict[str, Any] = field(default_factory=dict)
    """Definitions of tools: name -> JSON schema of the arguments."""
    model: str | None = None
    previous: str | None = None
    """The response or the conversation that this request continues without repeating it."""
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


_MEDIA: Final = re.compile(r"image|audio|video|file|document|media", re.IGNORECASE)


def shown(content: object) -> str:
    """Content as text; pictures and files are named in brackets."""
    if isinstance(content, list):
        return "\n".join(filter(None, map(_part, content)))
    return as_text(content)


def _part(part: object) -> str:
    if isinstance(part, Mapping):
        for name in ("text", "refusal", "content"):
            if isinstance(part.get(name), str):
                return str(part[name])
        if isinstance(part.get("content"), list):
            return shown(part["content"])
        found = _MEDIA.search(str(part.get("type", "")))
        if found:
            return f"[{found.group(0).casefold()}]"
    return as_text(part)


def clean(calls: Sequence[ToolCall], prefix: str) -> tuple[ToolCall, ...]:
    """Ids where the protocol gave none, and none twice."""
    taken: set[str] = set()
    found = []
    for number, call in enumerate(calls, start=1):
        identity = call.id or f"{prefix}_{number}"
        identity = f"{identity}_{number}" if identity in taken else identity
        taken.add(identity)
        found.append(call.model_copy(update={"id": identity}))
    return tuple(found)


def metered(
    row: object, *, prompt: Sequence[str], completion: Sequence[str], cached: int | None, cost: object = None
) -> Usage | None:
    """Tokens as a server counts them; `prompt` names every part of the input, cached parts included."""
    if not isinstance(row, Mapping):
        return None
    counts = [[count(row.get(name)) for name in names] for names in (prompt, completion)]
    if all(count is None for names in counts for count in names):
        return None
    read, wrote = (sum(count or 0 for count in names) for names in counts)
    spent = float(cost) if isinstance(cost, int | float) and not isinstance(cost, bool) and cost >= 0 else None
    return Usage(prompt_tokens=read, completion_tokens=wrote, cached_tokens=cached or 0, model_calls=1, cost=spent)


def count(value: object) -> int | None:
    """A count of tokens; None for what cannot be one."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1 << 40:
        return int(value)
    return None
