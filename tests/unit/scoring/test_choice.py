"""Multiple choice: letters, texts, and answers that try to choose everything."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coa.scoring.choice import choice, is_choice, letters_of, options_of
from coa.trajectory import Task

QUESTION = "Which one?\nA. red\nB. green\nC) blue one\n(D) none of them"


def task(gold: str | list[str] = "B", question: str = QUESTION, **meta: object) -> Task:
    return Task(id="t", question=question, answer=gold, meta=meta)


@pytest.mark.parametrize(
    "answer",
    ["B", "b", "(B)", "B.", "B)", "**B**", "B. green", "(B) Green", "green", "The green", "Option B", "Answer: B",
     "The answer is (B).", r"\boxed{B}", r"\boxed{\text{(B)}}", "[B]"],
)  # fmt: skip
def test_the_right_option_in_any_form(answer: str) -> None:
    assert choice(task(), answer).value == 1.0


@pytest.mark.parametrize(
    "answer",
    ["A", "A. red", "red", "A or B", "A, B", "A and B", "ABCD", "B. red", "E", "The answer is A or the answer is B",
     "I choose all of them", "Bonn", "B-29"],
)  # fmt: skip
def test_another_option_or_several_are_wrong(answer: str) -> None:
    assert choice(task(), answer).value == 0.0


def test_several_letters_are_right_where_the_gold_is_the_same_several() -> None:
    several = task("A, C")
    assert choice(several, "C and A").value == 1.0
    assert choice(several, "AC").value == 1.0
    assert choice(several, "A").value == 0.0
    assert choice(several, "A, B, C").value == 0.0


def test_options_come_from_the_meta_or_from_the_question() -> None:
    assert options_of(task()) == {"A": "red", "B": "green", "C": "blue one", "D": "none of them"}
    assert options_of(task(options=["x", "y"])) == {"A": "x", "B": "y"}
    assert options_of(task(options=["A. x", "B. y"])) == {"A": "x", "B": "y"}
    assert options_of(task(choices={"a": "x"})) == {"A": "x"}
    assert options_of(task(question="A. lone")) == {}


def test_a_gold_given_as_text_is_found_among_the_options() -> None:
    assert choice(task("green"), "B").value == 1.0
    assert choice(task("purple"), "B").value is None


def test_a_question_is_multiple_choice_only_if_its_gold_is_an_option() -> None:
    assert is_choice(task("B"))
    assert is_choice(task("blue one"))
    assert not is_choice(task("Bonn"))
    assert not is_choice(task("B", question="Which vitamin?"))
    assert is_choice(task("B", question="see picture", answer_type="multipleChoice"))


@settings(deadline=None)
@given(st.sampled_from("ABCD"), st.sampled_from("ABCD"))
def test_letters_are_equal_exactly_when_they_are(gold: str, answer: str) -> None:
    assert choice(task(gold), answer).value == float(gold == answer)


@settings(deadline=None)
@given(st.text(max_size=30))
def test_reading_letters_never_fails(text: str) -> None:
    letters_of(text, {"A": "x", "B": text})
