"""Near-duplicate questions: MinHash finds candidates, the exact similarity decides.

Each piece of a question is hashed once and put into one of as many bins as the signature is long; empty bins are filled
from their neighbours (one permutation hashing). It is written here because `datasketch` needs numpy and scipy for what
takes sixty lines.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Final

from coa.distill.filters.base import FilterStage, Reason

DUPLICATES: Final = FilterStage("duplicates", "each question once")
"""The last stage: it compares whatever all the filters kept (`spool.py`)."""
SAME_TRAJECTORY: Final = Reason(
    "same_trajectory", "These runs were read twice, step for step. One of them is kept, and no setting keeps both."
)
SAME_QUESTION: Final = Reason(
    "same_question",
    "There are several runs for one question, and one of them is kept.",
    settings=("duplicates.per_question=1000",),
)
NEAR_DUPLICATE: Final = Reason(
    "near_duplicate",
    "These questions are nearly the same as others, with the same answer.",
    settings=("duplicates.similarity=1",),
)
BANDS: Final = 16
ROWS: Final = 4
"""A pair of similarity 0.8 shares one of 16 bands of 4 rows with probability 0.9998."""
_PIECE: Final = 5
_EMPTY: Final = 1 << 64


def plain(text: str) -> str:
    """Words and digits only, in lower case."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(re.findall(r"\w+", folded))


def pieces(text: str) -> frozenset[str]:
    """Stretches of five characters of the plain text."""
    text = plain(text)
    return frozenset(text[start : start + _PIECE] for start in range(max(len(text) - _PIECE + 1, 1)))


def similarity(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / len(one | other)


def signature(found: Iterable[str]) -> list[int]:
    """The smallest hash in each bin; two signatures agree in about as many places as the sets are similar."""
    size = BANDS * ROWS
    smallest = [_EMPTY] * size
    for piece in found:
        value = int.from_bytes(hashlib.blake2b(piece.encode(), digest_size=8).digest(), "big")
        place = value % size
        if value < smallest[place]:
            smallest[place] = value
    return [_borrowed(smallest, place) for place in range(size)]


def _borrowed(smallest: list[int], place: int) -> int:
    """An empty bin takes the value of the next full one, mixed with the distance to keep the two apart."""
    for distance in range(len(smallest)):
        value = smallest[(place + distance) % len(smallest)]
        if value != _EMPTY:
            return (value + distance * 0x9E3779B97F4A7C15) % _EMPTY if distance else value
    return 0


def bands(question: str, *, beside: str = "") -> Iterator[int]:
    """Numbers, one of which similar questions share. Questions with different `beside` share none."""
    marks = signature(pieces(question))
    for band in range(BANDS):
        row = marks[band * ROWS : (band + 1) * ROWS]
        key = f"{band}\0{beside}\0{row}".encode()
        yield int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big", signed=True)
