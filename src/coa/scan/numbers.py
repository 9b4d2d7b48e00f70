"""Numbers in texts: the same value however it is written, rounded or put together from others."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterable
from typing import Final, NamedTuple

_NUMBER: Final = re.compile(
    r"(?<![\w.])[-+\u2212]?(?:\d{1,3}(?:[,\u00a0\u202f]\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][-+]?\d{1,3})?"
    r"(?:[ \u00a0]?(%|per ?cent\b|thousand\b|million\b|billion\b|trillion\b|bn\b|mn?\b|k\b))?",
    re.IGNORECASE,
)
_SEPARATORS: Final = re.compile(r"[,\u00a0\u202f]")
_DIGITS: Final = re.compile(r"[-+\u2212]?[\d,\u00a0\u202f]*\d(?:\.(\d+))?(?:[eE][-+]?\d+)?")
_SCALES: Final = {
    "%": 0.01, "percent": 0.01, "per cent": 0.01, "thousand": 1e3, "k": 1e3, "million": 1e6, "m": 1e6, "mn": 1e6,
    "billion": 1e9, "bn": 1e9, "trillion": 1e12,
}  # fmt: skip
_ROUND_FROM: Final = 10_000
"""Zeros at the end of a whole number may come from rounding if it is at least this large: 1900 is a year."""
_MOST: Final = 60
"""Number of known numbers of which pairs are made."""
_ROUNDING: Final = 2e-3


class Quantity(NamedTuple):
    value: float
    unit: float
    """What its last digit that counts is worth."""
    scaled: float | None = None
    """The value with the word behind it, such as million or per cent."""
    scale: float = 1.0


def quantities(text: str) -> list[Quantity]:
    found = []
    for match in _NUMBER.finditer(text):
        digits = _DIGITS.match(match.group())
        if digits is None:
            continue
        try:
            value = float(_SEPARATORS.sub("", digits.group()).replace("\u2212", "-"))
        except (ValueError, OverflowError):
            continue
        if math.isfinite(value):
            scale = _SCALES.get(" ".join((match.group(1) or "").casefold().split()), 1.0)
            unit = _unit(value, digits.group(1) or "")
            found.append(Quantity(value, unit, value * scale if scale != 1 else None, scale))
    return found


def values(text: str) -> set[float]:
    """Every value that the text may mean."""
    found = quantities(text)
    return {one.value for one in found} | {one.scaled for one in found if one.scaled is not None}


def stated(wanted: Iterable[Quantity], known: Iterable[float]) -> bool:
    """Whether one of these numbers is a known one, up to the rounding that its last digit shows."""
    sizes = sorted(abs(value) for value in known)
    return any(
        _between(sizes, abs(value) - unit / 2, abs(value) + unit / 2)
        for one in wanted
        for value, unit in ((one.value, one.unit), (one.scaled or one.value, one.unit * one.scale))
    )


def derived(wanted: Iterable[Quantity], known: set[float], written: set[float]) -> bool:
    """Whether one of these numbers comes of two known ones that were also written down, perhaps in two steps."""
    asked = [abs(value) for one in wanted for value in (one.value, one.scaled) if value is not None]
    for _ in range(2):
        made = _made_of(sorted(known & written)[:_MOST])
        if any(_is_near(value, made) for value in asked):
            return True
        known = known | {value for value in written if _is_near(abs(value), made)}
    return False


def _unit(value: float, decimals: str) -> float:
    if decimals:
        return 10.0 ** -len(decimals)
    if abs(value) < _ROUND_FROM or value != int(value):
        return 1.0
    digits = str(abs(int(value)))
    return 10.0 ** min(len(digits) - len(digits.rstrip("0")), len(digits) - 2)


def _made_of(numbers: list[float]) -> list[float]:
    """Everything that two of the numbers make, sorted and without signs."""
    pairs = [(one, other) for one in numbers for other in numbers]
    made = [value for one, other in pairs for value in (one + other, one - other, one * other)]
    return sorted(abs(value) for value in [*made, *(one / other for one, other in pairs if other)])


def _is_near(value: float, sizes: list[float]) -> bool:
    return _between(sizes, value * (1 - _ROUNDING), value * (1 + _ROUNDING))


def _between(sizes: list[float], low: float, high: float) -> bool:
    at = bisect_left(sizes, low)
    return at < len(sizes) and sizes[at] <= high
