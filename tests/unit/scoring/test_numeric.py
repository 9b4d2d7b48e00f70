"""Numbers: exact integers, tolerance, units, and nothing that only looks like a number."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coa.scoring.numeric import numeric, read_number
from coa.trajectory import Task


def score(gold: str | list[str], answer: str, question: str = "?", **meta: object) -> float | None:
    return numeric(Task(id="t", question=question, answer=gold, meta=meta), answer).value


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        ("1,000", "1000", ""),
        ("1 000.5", "1000.5", ""),
        ("1'000'000", "1000000", ""),
        ("-3.2e5", "-320000", ""),
        ("−7", "-7", ""),
        ("6.02 × 10^23", "602000000000000000000000", ""),
        ("6.02×10²³", "602000000000000000000000", ""),
        (r"2 \times 10^{-3}", "1/500", ""),
        ("$5", "5", "usd"),
        ("5 million dollars", "5000000", "usd"),
        ("5 km²", "5", "km2"),
        ("50%", "50", "%"),
        ("50 per cent", "50", "%"),
        (".5", "1/2", ""),
        ("3/4", "3/4", ""),
        ("$42$", "42", ""),
        (r"\boxed{42}", "42", ""),
        ("72 °F", "72", "°F"),
        ("12 apples", "12", "apple"),
    ],
)
def test_numbers_are_read_as_people_write_them(text: str, value: str, unit: str) -> None:
    number = read_number(text)
    assert number is not None and (number.value, number.unit) == (Fraction(value), unit)


@pytest.mark.parametrize(
    "text",
    ["nan", "inf", "-Infinity", "", "1e999999999", "12 3", "1,5", "1.000,5", "3:2", "2010-11", "1/0", "about 5",
     "between 3 and 5", "5 or 6", "9" * 5000, "forty-two", "5; DROP TABLE"],
)  # fmt: skip
def test_what_is_not_plainly_a_number_is_not_read_as_one(text: str) -> None:
    assert read_number(text) is None


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("5 km", "5000 m"),
        ("5 km", "5"),
        ("5", "5 km"),
        ("100 °C", "212 °F"),
        ("1 hour", "60 minutes"),
        ("90 km/h", "25 m/s"),
        ("1000000", "1,000,000"),
        ("0.1", "0.10000001"),
        ("50%", "0.5"),
        ("50%", "50"),
        ("0.5", "50%"),
        ("$5", "5 dollars"),
        ("1.0", "1"),
        ("1", "1.0"),
    ],
)
def test_the_same_quantity_is_right(gold: str, answer: str) -> None:
    assert score(gold, answer) == 1.0


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("5 km", "5 m"),
        ("5 km", "5 kg"),
        ("$5", "€5"),
        ("1e-10", "5e-10"),
        ("0", "1e-12"),
        ("123456789012345678901234567890", "123456789012345678901234567891"),
        ("100000000", "100000001"),
        ("3.14", "3.14159"),
        ("50", "0.5"),
        ("5", "-5"),
        ("5 mW", "5 MW"),
        ("42", "41 | 42"),
        ("42", "nan"),
    ],
)
def test_another_quantity_is_wrong(gold: str, answer: str) -> None:
    assert score(gold, answer) == 0.0


def test_a_question_for_per_cent_makes_bare_figures_per_cent() -> None:
    assert score("50", "50%", "What percentage is forest?") == 1.0
    assert score("0.5", "50%", "What percentage is forest?") == 0.0
    assert score("50", "50%", "What share is forest?") == 0.0


def test_a_tolerance_is_a_share_of_the_gold() -> None:
    assert score("3.14", "3.14159", tolerance=0.001) == 1.0
    assert score("1000", "1009", tolerance=0.01) == 1.0
    assert score("1000", "1011", tolerance=0.01) == 0.0
    assert score("1000", "1000", tolerance=-1) is None
    assert score("1000", "1000", tolerance="wide") is None


def test_a_gold_that_is_no_number_is_left_to_others() -> None:
    assert score("nan", "nan") is None
    assert score("Rome", "5") is None


def test_a_miss_is_certain_only_where_both_sides_were_read() -> None:
    def certain(gold: str | list[str], answer: str) -> bool:
        return numeric(Task(id="t", question="?", answer=gold), answer).certain

    assert certain("42", "43")
    assert not certain("42", "forty-two")
    assert not certain("42 parsecs", "137 ly")
    assert not certain(["42", "forty-two"], "43")


def test_all_of_several_numbers() -> None:
    assert score(["1", "2.5"], "2.50, 1", answer_mode="all") == 1.0
    assert score(["1", "2.5"], "1, 1", answer_mode="all") == 0.0
    assert score(["1", "2"], "2, 1", answer_mode="ordered") == 0.0


@settings(deadline=None)
@given(st.integers(-(10**40), 10**40), st.integers(-(10**40), 10**40))
def test_integers_are_equal_exactly_when_they_are(one: int, other: int) -> None:
    assert score(f"{one:,}", str(one)) == 1.0
    assert score(str(one), str(other)) == float(one == other)


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_equals_itself(value: float) -> None:
    assert score(repr(value), repr(value)) == 1.0


@settings(deadline=None)
@given(st.text(max_size=40))
def test_reading_never_fails(text: str) -> None:
    read_number(text)
