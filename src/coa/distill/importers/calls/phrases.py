"""Which of many texts occur in a given text: an index by their first words, so that nothing is compared pairwise."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

T = TypeVar("T")
_WORD: Final = re.compile(r"\w+")
_FIRST: Final = 4
"""Number of words that are looked up; the rest is compared."""


def words(text: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(text.casefold()))


class Phrases(Generic[T]):
    def __init__(self) -> None:
        self._owners: dict[tuple[str, ...], dict[tuple[tuple[str, ...], int], T]] = {}
        self._lengths: dict[int, int] = {}
        """How many heads there are of each length."""

    def add(self, phrase: tuple[str, ...], owner: T) -> None:
        head = phrase[:_FIRST]
        if head:
            self._lengths[len(head)] = self._lengths.get(len(head), 0) + (head not in self._owners)
            self._owners.setdefault(head, {})[phrase, id(owner)] = owner

    def remove(self, phrase: tuple[str, ...], owner: T) -> None:
        head = phrase[:_FIRST]
        found = self._owners.get(head, {})
        if found.pop((phrase, id(owner)), None) is not None and not found:
            del self._owners[head]
            self._lengths[len(head)] -= 1

    def within(self, text: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], T]]:
        """The phrases that occur in a text, with their owners."""
        lengths = [length for length, number in self._lengths.items() if number]
        for start in range(len(text)):
            for length in lengths:
                for (phrase, _), owner in self._owners.get(text[start : start + length], {}).items():
                    if len(phrase) <= length or text[start : start + len(phrase)] == phrase:
                        yield phrase, owner
