"""When an output is right: by lines, then by tokens, and by number only where a number with a fraction was expected.

Nothing here runs code, and nothing compared here can define its own `==`: outputs are text, values are plain JSON.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Final

from pydantic import JsonValue

_NOT_FINITE: Final = frozenset(("nan", "inf", "infinity"))


@dataclass(frozen=True, slots=True)
class OutputComparison:
    """How strictly outputs are compared. The tolerances hold for numbers with a fraction; one of them must be met."""

    relative: float = 1e-9
    absolute: float = 1e-12
    """Small, because problems with answers near 1e-10 exist; a problem that allows 1e-6 says so."""
    ignore_case: bool = False
    bool_is_int: bool = False
    """As in Python, where True == 1; for expectations that were written as assertions."""


STRICT: Final = OutputComparison()


def same_output(output: str, expected: str, how: OutputComparison = STRICT) -> bool:
    """Blanks at the ends of lines and blank lines at the end never count. The order and number of tokens always do."""
    if _lines(output) == _lines(expected):
        return True
    given, wanted = output.split(), expected.split()
    return len(given) == len(wanted) and all(_same_token(a, b, how) for a, b in zip(given, wanted, strict=True))


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.replace("\r\n", "\n").split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _same_token(given: str, wanted: str, how: OutputComparison) -> bool:
    if given == wanted or (how.ignore_case and given.casefold() == wanted.casefold()):
        return True
    number = _number(wanted)
    other = _number(given)
    if number is None or other is None:
        return False
    if number == other:
        return True  # 1.0 for 1, exactly, however many digits
    # An integer that is off by a little is wrong: only what was written with a fraction has a tolerance.
    fractional = any(mark in wanted for mark in ".eE")
    return fractional and _near(other, number, how)


def _number(token: str) -> Decimal | None:
    if token.lstrip("+-").casefold() in _NOT_FINITE or "_" in token or not token.isascii():
        return None  # these are words: equal as text, or not at all
    try:
        number = Decimal(token)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _near(given: float | Decimal, wanted: float | Decimal, how: OutputComparison) -> bool:
    try:
        one, other = float(given), float(wanted)
    except OverflowError:
        return False
    return math.isfinite(other) and math.isclose(one, other, rel_tol=how.relative, abs_tol=how.absolute)


def same_value(given: JsonValue, expected: JsonValue, how: OutputComparison = STRICT) -> bool:
    """What a function returned, as `sandbox.values` reads it, against JSON.

    Tuples are lists. A bool is not a number. Sets equal only sets, dictionaries are compared by the JSON form of keys.
    """
    if isinstance(given, dict) and isinstance(digits := given.get("int"), str):
        given = int(digits, 16)
    if (isinstance(given, bool) or isinstance(expected, bool)) and not how.bool_is_int:
        return given is expected
    if isinstance(given, int) and isinstance(expected, int):
        return given == expected
    if isinstance(given, int | float) and isinstance(expected, int | float):
        if isinstance(expected, int):
            return given == expected
        return _near(given, expected, how)
    if isinstance(given, str) and isinstance(expected, str):
        return given == expected or (how.ignore_case and given.casefold() == expected.casefold())
    if isinstance(given, list) and isinstance(expected, list):
        return len(given) == len(expected) and all(same_value(a, b, how) for a, b in zip(given, expected, strict=True))
    if isinstance(given, dict):
        pairs = given.get("dict")
        if isinstance(pairs, list) and isinstance(expected, dict):
            return _same_dict(pairs, expected, how)
        return False  # a set, or a number that is not finite
    return given is None and expected is None


def _same_dict(pairs: Sequence[JsonValue], expected: dict[str, JsonValue], how: OutputComparison) -> bool:
    found: dict[str, JsonValue] = {}
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2:
            return False
        found[_key(pair[0])] = pair[1]
    return found.keys() == expected.keys() and all(same_value(found[key], expected[key], how) for key in expected)


def _key(key: JsonValue) -> str:
    """As `json.dumps` would spell it."""
    if isinstance(key, bool):
        return "true" if key else "false"
    return "null" if key is None else str(key)
