"""Multiple choice: a letter, a letter with its option's text, or the text alone.

Options come from `meta["options"]` or `meta["choices"]` (a list, or an object of letters), or are read from the
question where it lists them line by line. Several letters are right only if the gold answer is the same several.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from coa.scoring.answers import final, golds, plain
from coa.scoring.base import Verdict
from coa.scoring.exact import normalise
from coa.trajectory import Task

_LETTERS: Final = "ABCDEFGHIJ"
_LISTED: Final = re.compile(r"^[ \t]*\(?([A-J])[).:][ \t]+(\S.*)$", re.MULTILINE)
_ALONE: Final = re.compile(r"[(\[]?([A-Ja-j])[)\]]?[.:]?")
_SEVERAL: Final = re.compile(
    r"[(\[]?[A-J][)\]]?(?:(?:\s*[,;&|/]\s*(?:and\s+)?|\s+and\s+)[(\[]?[A-J][)\]]?)+\.?|[A-J]{2,10}"
)
_LABELLED: Final = re.compile(r"[(\[]?([A-J])(?:[)\]][.:]?|[.:])\s+(\S.*)", re.DOTALL)
_NAMED: Final = re.compile(
    r"(?i:\b(?:answer|option|choice)\b(?:\s+(?:is|would be|should be))?)\s*:?\s*[(\[]?\b([A-J])\b[)\]]?(?!['\w])"
)


def options_of(task: Task) -> dict[str, str]:
    """Letter -> text; empty where none are known."""
    given = task.meta.get("options") or task.meta.get("choices")
    if isinstance(given, Mapping):
        return {str(key).strip().upper(): str(text) for key, text in given.items()}
    if isinstance(given, list | tuple):
        texts = [str(text) for text in given]
        labelled = [_LISTED.fullmatch(text) for text in texts]
        if all(labelled):
            return {found.group(1): found.group(2) for found in labelled if found}
        return dict(zip(_LETTERS, texts, strict=False))
    listed = _LISTED.findall(task.question)
    in_order = [letter for letter, _ in listed] == list(_LETTERS[: len(listed)])
    return dict(listed) if len(listed) > 1 and in_order else {}


def is_choice(task: Task) -> bool:
    """Whether the task is one: by its meta, or by options in the question one of which the gold answer names."""
    kind = str(task.meta.get("answer_type") or "").replace("_", "").replace(" ", "").casefold()
    if kind in ("multiplechoice", "choice", "mcq"):
        return True
    options = options_of(task)
    return bool(options) and bool(golds(task)) and all(letters_of(gold, options) for gold in golds(task))


def choice(task: Task, answer: str) -> Verdict:
    options, wanted = options_of(task), golds(task)
    right = [letters for gold in wanted if (letters := letters_of(gold, options))]
    if not right:
        return Verdict(None, "the gold answer names no option", "choice")
    given = letters_of(answer, options)
    if given is None:
        return Verdict(0.0, "the answer names no option, or more than it may", "choice", certain=False)
    chosen = ", ".join(sorted(given))
    if given in right:
        return Verdict(1.0, f"{chosen} is right", "choice")
    return Verdict(0.0, f"{chosen} is not {', '.join(sorted(right[0]))}", "choice")


def letters_of(text: str, options: Mapping[str, str]) -> frozenset[str] | None:
    """The letters that a text chooses; None where it chooses none, or cannot be pinned down to one reading."""
    text = plain(final(text)).strip().strip("*").strip()
    text = re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", text).strip("$ ")
    if found := _ALONE.fullmatch(text):
        return _known(frozenset(found.group(1).upper()), options)
    by_text = _by_text(text, options)
    if by_text:
        return by_text
    if _SEVERAL.fullmatch(text):
        return _known(frozenset(re.findall(r"[A-J]", text)), options)
    if found := _LABELLED.fullmatch(text):
        letter, rest = found.groups()
        meant = _by_text(rest, options)
        if meant is not None and meant != {letter}:
            return None  # the letter says one thing and the text another
        return _known(frozenset(letter), options)
    named = frozenset(_NAMED.findall(text))
    return _known(named, options) if len(named) == 1 else None


def _known(letters: frozenset[str], options: Mapping[str, str]) -> frozenset[str] | None:
    return letters if not options or letters <= options.keys() else None


def _by_text(text: str, options: Mapping[str, str]) -> frozenset[str] | None:
    same = [letter for letter, option in options.items() if normalise(option) == normalise(text)]
    return frozenset(same) if len(same) == 1 else None
