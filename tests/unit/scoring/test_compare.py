"""When an output is right: the cases that other judges get wrong, in both directions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coa.scoring.code.compare import OutputComparison, same_output, same_value

RIGHT = [
    ("1\n", "1"),
    ("1 2 3", "1 2 3 \n\n"),
    ("a  \nb\n\n\n", "a\nb"),
    ("a\r\nb\r\n", "a\nb\n"),
    ("1\n2\n", "1 2"),  # by tokens
    ("1.0", "1"),  # exactly equal, however it is written
    ("1", "1.0"),
    ("0.1 0.30000000001", "0.1 0.3"),
    ("3.1415926535", "3.14159265350000001"),
    ("1e3", "1000.0"),
    ("-0.0", "0.0"),
    ("", ""),
    ("\n", ""),
    ("nan", "nan"),  # as a word
]
WRONG = [
    ("garbage", ""),
    ("", "1"),
    ("yes", "YES"),
    ("1e-10", "5e-10"),
    ("1.1", "1"),
    ("1.0000000000001", "1"),  # an integer was expected
    ("10000000000000000000000001", "10000000000000000000000002"),
    ("1 2", "2 1"),
    ("1 1 2", "1 2 2"),
    ("1 2", "1 2 3"),
    ("1 2 3 3", "1 2 3"),
    ("nan", "0.5"),
    ("0.5", "nan"),
    ("inf", "1e999"),
    ("1_000", "1000"),
    ("0x10", "16"),
    ("٣", "3"),
    ("12", "1 2"),
    ("True", "1"),
]


@pytest.mark.parametrize(("output", "expected"), RIGHT)
def test_right_outputs_are_accepted(output: str, expected: str) -> None:
    assert same_output(output, expected)


@pytest.mark.parametrize(("output", "expected"), WRONG)
def test_wrong_outputs_are_not(output: str, expected: str) -> None:
    assert not same_output(output, expected)


def test_a_problem_may_be_more_lenient() -> None:
    assert same_output("yes", "YES", OutputComparison(ignore_case=True))
    assert same_output("0.333", "0.3333", OutputComparison(relative=1e-2))
    assert not same_output("334", "333", OutputComparison(relative=1e-2))  # integers stay exact


@given(st.text())
def test_every_output_equals_itself(text: str) -> None:
    assert same_output(text, text)


@given(st.integers(), st.integers())
def test_integers_are_equal_only_if_they_are(first: int, second: int) -> None:
    assert same_output(str(first), str(second)) is (first == second)


@pytest.mark.parametrize(
    ("given_value", "expected", "right"),
    [
        (1, 1, True),
        (True, 1, False),
        (1, True, False),
        (True, True, True),
        (0, False, False),
        (2.0, 2, True),
        (2, 2.0, True),
        (2.1, 2, False),
        (0.1 + 0.2, 0.3, True),
        (10**30, 10**30 + 1, False),
        ([1, [2]], [1, [2]], True),
        ([1, 2], [2, 1], False),
        ([1, 2], [1, 2, 2], False),
        ("a", "a", True),
        ("A", "a", False),
        ("1", 1, False),
        (None, None, True),
        (None, 0, False),
        (None, False, False),
        ([], None, False),
        ({"dict": [["a", 1]]}, {"a": 1}, True),
        ({"dict": [[1, 2]]}, {"1": 2}, True),
        ({"dict": [["a", 1], ["b", 2]]}, {"a": 1}, False),
        ({"set": [1, 2]}, [1, 2], False),
        ({"float": "nan"}, {"float": "nan"}, False),
    ],
)
def test_values_are_compared_by_kind(given_value: object, expected: object, right: bool) -> None:
    assert same_value(given_value, expected) is right  # type: ignore[arg-type]
