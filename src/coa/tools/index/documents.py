"""Documents, and the passages into which they are split."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

PASSAGE_WORDS: Final = 150
"""Five passages of this length fit into an observation of the mhqa profile."""


@dataclass(frozen=True, slots=True)
class IndexedDocument:
    id: str
    title: str
    text: str
    url: str = ""
    date: str = ""


@dataclass(frozen=True, slots=True)
class Passage(IndexedDocument):
    """A document that is short enough, or a part of one, whose id is then `document#number`."""


_PARAGRAPH: Final = re.compile(r"\n\s*\n")
_SENTENCE: Final = re.compile(r"(?<=[.!?。！？])\s+")


def split(document: IndexedDocument, words: int = PASSAGE_WORDS) -> Iterator[Passage]:
    """Passages of at most `words` words, split at paragraphs if possible, else at sentences, else anywhere.

    With `words=0` nothing is split.
    """
    whole = Passage(document.id, document.title, document.text, document.url, document.date)
    if not words or len(document.text.split()) <= words:
        yield whole
        return
    for number, text in enumerate(_packed(list(_pieces(document.text, words)), words)):
        yield replace(whole, id=f"{document.id}#{number}", text=text)


def _pieces(text: str, words: int) -> Iterator[tuple[str, int, str]]:
    """Tuples of a piece within the limit, its number of words, and what joins it to the piece before."""
    for paragraph in _PARAGRAPH.split(text):
        size = len(paragraph.split())
        if size <= words:
            if size:
                yield paragraph.strip(), size, "\n\n"
            continue
        joint = "\n\n"
        for sentence in _SENTENCE.split(paragraph):
            parts = sentence.split()
            if len(parts) <= words:
                yield sentence.strip(), len(parts), joint
                joint = " "
                continue
            for start in range(0, len(parts), words):
                cut = parts[start : start + words]
                yield " ".join(cut), len(cut), joint
                joint = " "


def _packed(pieces: list[tuple[str, int, str]], words: int) -> Iterator[str]:
    """As few passages as the pieces allow, of about the same size: a last passage of three words is of no use."""
    total = sum(size for _, size, _ in pieces)
    aim = total / -(-total // words)
    text, filled, seen, made = "", 0, 0, 1
    for piece, size, joint in pieces:
        if text and (filled + size > words or seen + size / 2 > made * aim):
            yield text
            text, filled, made = "", 0, made + 1
        text = f"{text}{joint}{piece}" if text else piece
        filled += size
        seen += size
    if text:
        yield text
