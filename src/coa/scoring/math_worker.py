r"""Runs in a worker process (`coa.workers`): decides whether an answer and the gold answers are the same mathematics.

Parsing and simplifying can take for ever or all memory, inside code that no Python thread can interrupt.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, Final

from coa.scoring.answers import AnswerMode, final, matched, splits
from coa.scoring.exact import exact_match, normalise
from coa.scoring.latex import is_formula, parts, readable_form, spelled, without_formulas
from coa.scoring.math import literally

_TINY: Final = 1e-3
"""Below it, six decimals (what math-verify compares) say too little, and the ratio decides."""
_DECISIONS: Final = frozenset(("yes", "no", "true", "false"))
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
    if how is AnswerMode.ANY and (by_part := _by_part(wanted, answer)) is not None:
        return by_part
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


def _by_part(wanted: list[str], answer: str) -> _Found | None:
    """The verdict on golds that have labelled parts, (a) Yes; (b) 4: every part must be right. None without such golds.

    An answer may leave the labels out and keep the order.
    """
    golds = [list(labelled.values()) for gold in wanted if (labelled := parts(gold))]
    if not golds or len(golds) < len(wanted):
        return None
    given = parts(final(answer))
    readings = [list(given.values())] if given else list(splits(answer, AnswerMode.ORDERED))
    found = [
        [_same_part(*pair) for pair in zip(gold, reading, strict=True)]
        for gold in golds
        for reading in readings
        if len(reading) == len(gold)
    ]
    if any(all(verdicts) for verdicts in found):
        return 1.0, "the same in every part", True, False
    if any(False not in verdicts for verdicts in found):
        return None, "a part of the gold answer cannot be read as mathematics", True, False
    return 0.0, "not the same in every part", bool(found), False


def _same_part(gold: str, part: str) -> bool | None:
    """None where the gold's part cannot be read."""
    if exact_match(gold, part) or literally(gold, part):
        return True
    if normalise(gold) in _DECISIONS:
        return False
    value = _compared([gold], part, prose=False)[0]
    return None if value is None else value == 1.0


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

    text = spelled(text)

    def read(written: str, *targets: Any) -> list[Any]:
        found = parse(written, list(targets), parsing_timeout=None) if targets else parse(written, parsing_timeout=None)
        return [item for item in found if not isinstance(item, str)]

    latex = LatexExtractionConfig()
    found = read(f"${text}$", latex) or read(f"${readable_form(text)}$", latex)
    if found or not prose or is_formula(text):
        return found
    # A number inside a formula that cannot be read is not what the answer says.
    return read(text if read(text, latex) else without_formulas(text))


def _apart(one: Any, other: Any) -> bool:
    """Whether two tiny numbers differ by more than rounding."""
    try:
        left, right = complex(one.evalf()), complex(other.evalf())
    except (TypeError, ValueError, AttributeError):
        return False  # not numbers
    largest = max(abs(left), abs(right))
    return 0 < largest < _TINY and abs(left - right) > 1e-3 * largest
