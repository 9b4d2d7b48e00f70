"""The one way to cut a text that is too long: its middle is removed, and a line says how many characters are missing.

Tools cut what they return, a run cuts what its context has no room for, distillation cuts what a team's tools returned,
and training cuts what exceeds a sample. All of them write the same mark, so that a model sees in training what it
will see at run time. A text may be cut several times on its way. A mark inside the part that is removed is included in
the new count, so the last mark gives the sum, and no mark is ever cut in two. Marks of earlier versions count as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

_MARK: Final = re.compile(
    r"(?:\n|(?<=\n)|\A)\[(?:\.\.\. (\d+) characters omitted \.\.\.|(\d+) characters cut|cut to fit the context"
    r"|cut: ([\d,]+) of ([\d,]+) characters shown)\](?:\n|\Z)"
)
"""The mark on its own line, line ends included, and the three marks that earlier versions wrote."""


def shorten(text: str, limit: int, *, count: Callable[[str], int] | None = None, keep_end: bool = True) -> str:
    """The text, or its beginning and end with a mark between them, of at most `limit` characters.

    With `count`, the limit is in tokens, and `count` returns the number of tokens of a text. No tokenizer needs more
    tokens than the text has bytes. Without `keep_end`, only the beginning is kept. At least one character is kept on
    each side, so a limit below the length of the mark is exceeded.
    """
    if count is None:
        if len(text) <= limit:
            return text
        return _cut(text, limit - len(_mark(len(text) + omitted(text))) - 2, keep_end)
    # Bytes are compared first because counting tokens takes long.
    if len(text.encode("utf-8", "surrogatepass")) <= limit or (counted := count(text)) <= limit:
        return text
    shorter, kept = text, len(text)
    while counted > limit and kept > 2:
        # The number of characters per token varies along the text, so the first guess may still be too long.
        kept = max(min(kept * limit // counted, kept - 16), 2)
        shorter = _cut(text, kept, keep_end)
        counted = count(shorter)
    return shorter


def omitted(text: str) -> int:
    """The number of missing characters according to the marks in the text, whatever version wrote them."""
    return sum(_omitted(mark) for mark in _MARK.finditer(text))


def _omitted(mark: re.Match[str]) -> int:
    new, old, shown, whole = (int((group or "0").replace(",", "")) for group in mark.groups())
    return new + old + whole - shown


def _cut(text: str, kept: int, keep_end: bool) -> str:
    start = max(kept - kept // 2, 1) if keep_end else max(kept, 1)
    end = len(text) - max(kept // 2, 1) if keep_end else len(text)
    gone = 0
    for mark in _MARK.finditer(text):
        if mark.start() < start < mark.end():
            start = mark.start()
        if mark.start() < end < mark.end():
            end = mark.end()
        if start <= mark.start() and mark.end() <= end:
            gone += _omitted(mark) - len(mark.group())
    head, tail = text[:start], text[end:]
    return f"{head}\n{_mark(gone + end - start)}" + (f"\n{tail}" if keep_end else "")


def _mark(characters: int) -> str:
    return f"[... {characters} characters omitted ...]"
