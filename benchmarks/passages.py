"""Passages and queries to measure search on: words drawn by Zipf's law, the same every time."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

VOCABULARY: Final = 200_000
WORDS: Final = 100
"""A passage, as in the Wikipedia corpora of open question answering."""
_SYLLABLES: Final = [c + v for c in "bcdfghklmnprstvwz" for v in ("a", "e", "i", "o", "u", "an", "er", "is")]


def word(rank: int) -> str:
    """The more frequent, the shorter, as in a language; no two the same."""
    parts = []
    rank += 1
    while rank:
        rank, syllable = divmod(rank, len(_SYLLABLES))
        parts.append(_SYLLABLES[syllable])
    return "".join(parts)


def passages(count: int, *, seed: int = 0) -> Iterator[tuple[str, str]]:
    """(title, text)"""
    rng = random.Random(seed)
    words = [word(rank) for rank in range(VOCABULARY)]
    weights = list(itertools.accumulate(1 / (rank + 2.7) for rank in range(VOCABULARY)))
    for _ in range(count):
        drawn = rng.choices(words, cum_weights=weights, k=WORDS)
        yield f"{drawn[0].title()} {drawn[1]}", " ".join(drawn) + "."


def queries(count: int, *, seed: int = 1) -> list[str]:
    """Questions of 4 to 8 words, of which about half are frequent ones."""
    rng = random.Random(seed)
    words = [word(rank) for rank in range(VOCABULARY)]
    weights = list(itertools.accumulate(1 / (rank + 2.7) for rank in range(VOCABULARY)))
    return [" ".join(rng.choices(words, cum_weights=weights, k=rng.randint(4, 8))) for _ in range(count)]


def write_jsonl(path: Path, count: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        for number, (title, text) in enumerate(passages(count)):
            file.write(f'{{"id": "p{number}", "title": "{title}", "text": "{text}"}}\n')
