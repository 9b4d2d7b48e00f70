"""Numbers: exact where they are integers, within a tolerance where they are not, with units where both have one.

Everything is a fraction, so that neither a large integer nor a conversion loses a digit. What is not plainly a number
with at most a unit is not read as one. `nan` and `inf` are not numbers here and equal nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from coa.scoring.answers import AnswerMode, final, golds, matched, mode, plain, splits, unknown_mode
from coa.scoring.base import Verdict
from coa.scoring.units import CURRENCIES, PER_CENT, SCALES, conversion, unit_name
from coa.trajectory import Task

RELATIVE: Final = Fraction(1, 10**6)
"""Of the gold's size, where the gold is not an integer. `meta["tolerance"]` sets another."""
_LONGEST: Final = 1000
"""Characters. Beyond it nothing is read, so that no answer makes a number that takes long to compute with."""
_FIGURE: Final = re.compile(
    r"""
    (?P<sign>[+-]?)\s*
    (?P<money>[$€£¥₹]?)\s*
    (?P<whole>\d{1,3}(?:,\d{3})+|\d{1,3}(?:['\ ]\d{3})+|\d+|(?=\.\d))
    (?P<decimals>\.\d*)?
    (?:\s?/\s?(?P<below>\d+))?
    (?:
      e(?P<e>[+-]?\d{1,3})(?!\d)
      |\s*(?:[×x*·]|\\times|\\cdot)\s*10\s*(?:\^|\*\*)\s*\{?(?P<ten>[+-]?\d{1,3})(?!\d)\}?
    )?
    (?:\s*(?P<scale>thousand|million|billion|trillion)\b)?
    \s*(?P<unit>\D*?(?:\^?[23])?)
    """,
    re.VERBOSE | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Number:
    value: Fraction
    unit: str = ""
    integer: bool = False
    """Written as one: no point, fraction or exponent."""


def read_number(text: str) -> Number | None:
    """The number that a text is, not one that it contains."""
    text = plain(final(text)).strip()
    if len(text) > _LONGEST:
        return None
    if text.startswith("$") and text.endswith("$"):
        text = text.strip("$").strip()  # LaTeX, not dollars
    text = text.replace("\\$", "$").replace("\\%", "%").replace("{,}", ",").replace("\\,", "").rstrip(". ")
    found = _FIGURE.fullmatch(text)
    unit = unit_name(found["unit"]) if found else None
    if found is None or unit is None or (unit and found["money"]):
        return None
    whole, decimals = re.sub(r"[,' ]", "", found["whole"]), (found["decimals"] or "").strip(".")
    value = Fraction(int(whole + decimals), 10 ** len(decimals))
    if found["below"]:
        if int(found["below"]) == 0 or found["decimals"]:
            return None
        value /= int(found["below"])
    exponent = found["e"] or found["ten"]
    value *= Fraction(10) ** int(exponent or 0) * SCALES[(found["scale"] or "").lower()]
    integer = not (found["decimals"] or found["below"] or exponent or found["scale"])
    return Number(-value if found["sign"] == "-" else value, CURRENCIES.get(found["money"], unit), integer)


def numeric(task: Task, answer: str) -> Verdict:
    how, wanted = mode(task), golds(task)
    if how is None:
        return unknown_mode("numeric", task)
    try:
        tolerance = _tolerance(task)
    except (ValueError, OverflowError) as error:
        return Verdict(None, f"the task's tolerance cannot be used: {error}", "numeric")
    numbers = [number for gold in wanted if (number := read_number(gold))]
    if not numbers or (how is not AnswerMode.ANY and len(numbers) < len(wanted)):
        return Verdict(None, "the gold answer is not a number", "numeric")
    per_cent = re.search(r"%|per\s?cent", task.question, re.IGNORECASE) is not None

    def same(gold: str, part: str) -> bool:
        one, other = read_number(gold), read_number(part)
        return bool(one and other and equal(one, other, tolerance, per_cent=per_cent))

    if matched(answer, wanted, how, same):
        return Verdict(1.0, "the same number", "numeric")
    given = read_number(next(splits(answer, how))[0])
    if given is None:
        return Verdict(0.0, "the answer is not plainly a number", "numeric", certain=False)
    # With golds in words beside the number, or units of which one is unknown, a match cannot be ruled out.
    settled = len(numbers) == len(wanted) and all(
        equal(number, given, tolerance, per_cent=per_cent) is False for number in numbers
    )
    return Verdict(0.0, "another number", "numeric", certain=settled)


def equal(gold: Number, given: Number, tolerance: Fraction | None = None, *, per_cent: bool = False) -> bool | None:
    """None where the units cannot be compared. `per_cent`: the question asks for it, so bare figures are per cent."""
    figures = _near(gold.value, given.value, gold.integer, tolerance)
    if gold.unit == given.unit:
        return figures
    if not gold.unit or not given.unit:
        if PER_CENT not in (gold.unit, given.unit):
            # The question names the unit, and one side repeats it.
            return figures
        one, other = (n.value / 100 if n.unit == PER_CENT else n.value for n in (gold, given))
        as_shares = not per_cent and _near(one, other, False, tolerance)
        return (figures and (per_cent or gold.unit == PER_CENT)) or as_shares
    one_unit, other_unit = conversion(gold.unit), conversion(given.unit)
    if one_unit is None or other_unit is None or one_unit.dimension != other_unit.dimension:
        return None
    return _near(one_unit.to_base(gold.value), other_unit.to_base(given.value), False, tolerance)


def _near(gold: Fraction, given: Fraction, integer: bool, tolerance: Fraction | None) -> bool:
    allowed = tolerance if tolerance is not None else Fraction(0) if integer else RELATIVE
    return abs(gold - given) <= allowed * abs(gold)


def _tolerance(task: Task) -> Fraction | None:
    """What the task asks for, as a share of the gold; None for the default."""
    given = task.meta.get("tolerance")
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float) or given < 0:
        raise ValueError(f"it is {given!r}, not a number from 0 on")
    return Fraction(given)
