r"""Reading gold answers and given answers: which characters mean the same, and what counts as one answer of several.

A task's `answer` may hold several strings. `meta["answer_mode"]` says what that means: `any` of them is right (the
default), `all` of them are needed, or all of them in this order (`ordered`). Several answers in one text are joined by
a bar; each part must then be right, so that naming everything one can think of does not pay.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import Final

from coa.scoring.base import Verdict
from coa.trajectory import Task
from coa.trajectory.shapes import last_boxed

MODE_KEY: Final = "answer_mode"
_EMPHASIS: Final = ("**", "__", "`")


class AnswerMode(StrEnum):
    """What several gold answers mean: any one of them is right, all are needed, or all in their order."""

    ANY = "any"
    ALL = "all"
    ORDERED = "ordered"


_SUPERSCRIPTS: Final = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_RAISED: Final = re.compile(r"[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_MIXED: Final = re.compile(r"(?<=\d)(?=[¼-¾⅐-⅞])")
_LOOK_ALIKES: Final = str.maketrans({
    **dict.fromkeys("‐‑‒–—―−﹣－", "-"),
    **dict.fromkeys("‘’‚‛′`´", "'"),
    **dict.fromkeys("“”„‟″«»", '"'),
    "⁄": "/", "∕": "/", "\u00ad": "", "\u200b": "", "\u200e": "", "\u200f": "", "\ufeff": "",
})  # fmt: skip


def plain(text: str) -> str:
    """One spelling for characters that mean the same: widths, dashes, quotes, invisible ones.

    Raised digits become `^5` first; Unicode's own rule would make 25 of 2⁵ and 11/2 of 1½.
    """
    text = _RAISED.sub(lambda found: "^" + found.group().translate(_SUPERSCRIPTS), text)
    return unicodedata.normalize("NFKC", _MIXED.sub(" ", text)).translate(_LOOK_ALIKES)


def final(answer: str) -> str:
    r"""The result itself: the inside of the last `\boxed{}` where there is one, without emphasis around it."""
    inside = last_boxed(answer)
    text = (inside if inside and inside.strip() else answer).strip()
    for mark in _EMPHASIS:  # not a regular expression, whose time would grow with the square of the length
        if text.startswith(mark) and text.endswith(mark) and (bare := text[len(mark) : -len(mark)].strip()):
            return bare
    return text


def golds(task: Task) -> list[str]:
    return [text for gold in task.answer if (text := final(gold))]


def mode(task: Task) -> AnswerMode | None:
    """None where the task names an unknown mode."""
    try:
        return AnswerMode(str(task.meta.get(MODE_KEY, AnswerMode.ANY)))
    except ValueError:
        return None


def unknown_mode(rule: str, task: Task) -> Verdict:
    return Verdict(None, f"the task's {MODE_KEY} is {task.meta[MODE_KEY]!r}; it can be any, all or ordered", rule)


_SEPARATORS: Final = (r"\|", r"\n", r";", r",(?!\d{3}(?!\d))", r",(?!\d{3}(?!\d))\s*(?:and\s)?|\sand\s")
"""Tried in this order; a comma inside 1,000 separates nothing."""


def splits(answer: str, how: AnswerMode) -> Iterator[list[str]]:
    """The ways to read a text as a list of answers. Where any gold will do, only a bar separates."""
    text = final(answer)
    yield [text]
    for separator in _SEPARATORS if how is not AnswerMode.ANY else _SEPARATORS[:1]:
        parts = [part for piece in re.split(separator, text) if (part := final(piece.strip(" \t-*•")))]
        if len(parts) > 1:
            yield parts


def matched(answer: str, wanted: Sequence[str], how: AnswerMode, same: Callable[[str, str], bool]) -> bool:
    """Whether some reading of the answer gives what is wanted. `same(gold, part)` compares two."""
    return any(_fits(parts, wanted, how, same) for parts in splits(answer, how))


def _fits(parts: Sequence[str], wanted: Sequence[str], how: AnswerMode, same: Callable[[str, str], bool]) -> bool:
    if how is AnswerMode.ANY:
        return all(any(same(gold, part) for gold in wanted) for part in parts)
    if len(parts) != len(wanted):
        return False
    if how is AnswerMode.ORDERED:
        return all(same(gold, part) for gold, part in zip(wanted, parts, strict=True))
    left = list(parts)
    for gold in wanted:
        found = next((part for part in left if same(gold, part)), None)
        if found is None:
            return False
        left.remove(found)
    return True
