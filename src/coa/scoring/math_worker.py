r"""Runs in a worker process (`coa.workers`): decides whether an answer and the gold answers are the same mathematics.

Parsing and simplifying can take for ever or all memory, inside code that no Python thread can interrupt.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, Final

from coa.scoring.answers import AnswerMode, final, matched, splits
from coa.scoring.math import literally

_TINY: Final = 1e-3
"""Below it, six decimals (what math-verify compares) say too little, and the ratio decides."""
_Found = tuple[float | None, str, bool, bool]
"""Value, reason, whether the answer could be read, and whether something broke: a verdict in the making."""


def prepare() -> None:
    """The first comparison compiles and imports, for which no answer should pay."""
    with suppress(ModuleNotFoundError):
        compare(["x^2"], "x x", prose=True)


def answer(request: bytes) -> bytes:
    asked = json.loads(request)
    try:
        found = decide(AnswerMode(asked["mode"]), asked["golds"], asked["answer"])
    except ModuleNotFoundError as error:
        return json.dumps({"missing": str(error)}).encode()
    return json.dumps(dict(zip(("value", "reason", "certain", "broken"), found, strict=True))).encode()


def decide(how: AnswerMode, wanted: list[str], answer: str) -> _Found:
    """The answer as one piece, then in every way to read it as several."""
    # Several golds that are all needed make one set, or one tuple, which an answer may write as such.
    joined = {AnswerMode.ALL: "{}", AnswerMode.ORDERED: "({})"}.get(how, "").format(", ".join(wanted))
    several = len(list(splits(answer, how))) > 1
    whole = _compared([joined] if joined else wanted, final(answer), prose=not several)
    unread = [whole] if whole[0] is None else []

    def same(gold: str, part: str) -> bool:
        if literally(gold, part):
            return True
        found = _compared([gold], part, prose=False)
        if found[0] is None:
            unread.append(found)
        return found[0] == 1.0

    if whole[0] != 1.0 and several and matched(answer, wanted, how, same):
        return 1.0, "equivalent part by part", True, False
    return unread[0] if unread else whole


def _compared(golds: list[str], answer: str, *, prose: bool) -> _Found:
    try:
        return *compare(golds, answer, prose=prose), False
    except ModuleNotFoundError:
        raise
    except Exception as error:  # a library's trouble with one formula, whatever it is
        return None, f"{type(error).__name__} while comparing", False, True


def compare(golds: list[str], answer: str, *, prose: bool) -> tuple[float | None, str, bool]:
    """Whether the answer is one of the golds, why, and whether the answer could be read.

    A gold that cannot be read leaves the answer unscored, unless another one matches. `prose`: where the answer is not
    a formula as a whole, the last one in it counts.
    """
    given = _parsed(answer, prose=prose)
    unread = 0
    for gold in golds:
        wanted = _parsed(gold, prose=False)
        if not wanted:
            unread += 1
            continue
        if given and _equivalent(wanted, given):
            return 1.0, "equivalent", True
    if unread:
        return None, "the gold answer cannot be read as mathematics", bool(given)
    if not given:
        return 0.0, "the answer cannot be read as mathematics", False
    return 0.0, "not equivalent", True


def _equivalent(wanted: list[Any], given: list[Any]) -> bool:
    from math_verify import verify

    try:
        same = bool(verify(wanted, given, timeout_seconds=None, raise_on_error=True))
    except (MemoryError, RecursionError):
        raise  # no verdict
    except Exception:
        return False  # things that cannot be compared are not the same
    return same and not _apart(wanted[0], given[0])


def _parsed(text: str, *, prose: bool) -> list[Any]:
    """Expressions only. math-verify adds the string that it read, which would make unreadable things comparable."""
    from math_verify import LatexExtractionConfig, parse

    found = parse(f"${text}$", [LatexExtractionConfig()], parsing_timeout=None)
    if prose and all(isinstance(item, str) for item in found):
        found = parse(text, parsing_timeout=None)
    return [item for item in found if not isinstance(item, str)]


def _apart(one: Any, other: Any) -> bool:
    """Whether two tiny numbers differ by more than rounding."""
    try:
        left, right = complex(one.evalf()), complex(other.evalf())
    except (TypeError, ValueError, AttributeError):
        return False  # not numbers
    largest = max(abs(left), abs(right))
    return 0 < largest < _TINY and abs(left - right) > 1e-3 * largest
