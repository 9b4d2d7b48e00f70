"""Exact match and F1: what is the same, what is not, and what a list of answers means."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coa.scoring.exact import exact, exact_match, f1, normalise, token_f1
from coa.trajectory import Task
from coa.trajectory.formats.tasks import read_tasks

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"
ANSWERS = st.text(min_size=1, max_size=30) | st.from_regex(
    r"[-$(]?[A-Ca-c0-9]{1,3}[.,/+#) ]{0,2}[a-z0-9]{0,4}", fullmatch=True
)


def task(*answers: str, question: str = "?", **meta: object) -> Task:
    return Task(id="t", question=question, answer=answers, meta=meta)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The Beatles", "beatles"),
        ('"The Beatles"', "Beatles."),
        ("U.S.", "US"),
        ("1,234,567", "1234567"),
        ("Beyoncé", "beyonce"),
        ("Wilhelm Conrad Röntgen", "wilhelm conrad rontgen"),
        ("O’Neill", "O'Neill"),
        ("2010–11", "2010-11"),
        ("May 18, 2018", "may 18 2018"),
        ("**Paris**", "paris"),
        ("ＡＢＣ １２", "abc 12"),
        ("New  York\n(city)", "new york city"),
        ("AC/DC", "ACDC"),
        ("straße", "STRASSE"),
        ("e\u0301tude", "\u00e9tude"),
    ],
)
def test_spellings_of_one_answer_are_equal(one: str, other: str) -> None:
    assert exact_match(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("3.14", "314"),
        ("-5", "5"),
        ("1/2", "12"),
        ("3:2", "32"),
        ("1,2", "12"),
        ("C++", "C"),
        ("C#", "C"),
        ("A+", "A"),
        ("vitamin A", "vitamin"),
        ("A | B", "B"),
        ("(A) B", "B"),
        ("A/B", "B"),
        ("2⁵", "25"),
        ("1½", "11/2"),
        ("が", "か"),
        ("+", "-"),
        ("?", "!"),
        ("", "a"),
        (r"\frac{1}{23}", r"\frac{12}{3}"),
        ("(1, 2]", "[1, 2)"),
    ],
)
def test_different_answers_stay_different(one: str, other: str) -> None:
    assert not exact_match(one, other)


@settings(deadline=None)
@given(ANSWERS, ANSWERS)
def test_exact_match_is_symmetric_and_f1_lies_between_nought_and_one(one: str, other: str) -> None:
    assert exact_match(one, other) == exact_match(other, one)
    assert 0.0 <= token_f1(one, other) <= 1.0
    assert (token_f1(one, other) == 1.0) >= exact_match(one, other)


@settings(deadline=None)
@given(ANSWERS.filter(str.strip))
def test_every_gold_scores_one_against_itself(gold: str) -> None:
    assert exact_match(gold, gold)
    assert token_f1(gold, gold) == 1.0
    assert exact(task(gold), gold).value == f1(task(gold), gold).value == 1.0


@settings(deadline=None)
@given(st.text(max_size=40))
def test_normalising_never_fails_and_leaves_something(text: str) -> None:
    assert isinstance(normalise(text), str)
    assert bool(normalise(text)) or not any(c.isalnum() for c in text)


def test_f1_by_hand() -> None:
    # gold: 3 words, answer: 4, shared: 2; 2 * 2 / (3 + 4)
    assert token_f1("the red brick house", "a big red old house") == pytest.approx(4 / 7)
    assert token_f1("red", "blue") == 0.0
    # Words count as often as they occur: shared is 1, not 2.
    assert token_f1("duran", "duran duran") == pytest.approx(2 / 3)


def test_yes_and_no_share_nothing_with_other_answers() -> None:
    assert token_f1("no", "no idea") == 0.0
    assert token_f1("yes", "Yes.") == 1.0


@pytest.mark.parametrize(
    ("gold", "answer", "value"),
    [
        ("Yes", "yes.", 1.0),
        ("Yes", "Yes, because both are in Rome.", 1.0),
        ("Yes", "No", 0.0),
        ("Yes", "Yes or no", 0.0),
        ("No", "No, or yes, it depends", 0.0),
        ("No", "Norway", 0.0),
        ("Norway", "No", 0.0),
    ],
)
def test_a_yes_or_no_question_is_answered_by_the_first_word(gold: str, answer: str, value: float) -> None:
    assert exact(task(gold), answer).value == value


def test_any_gold_will_do_but_every_part_of_the_answer_must_be_one() -> None:
    both = task("Olivia", "MFSK")
    assert exact(both, "mfsk").value == 1.0
    assert exact(both, "Olivia | MFSK").value == 1.0
    assert exact(both, "Olivia | MFSK | PSK31 | Morse").value == 0.0, "naming everything must not pay"
    assert f1(both, "Olivia | Morse").value == 0.0


def test_all_golds_are_needed_where_the_task_says_so() -> None:
    everything = task("Rome", "Paris", answer_mode="all")
    assert exact(everything, "Paris | Rome").value == 1.0
    assert exact(everything, "Paris, Rome").value == 1.0
    assert exact(everything, "Paris and Rome").value == 1.0
    assert exact(everything, "Paris\n- Rome").value == 1.0
    assert exact(everything, "Paris").value == 0.0
    assert exact(everything, "Paris | Paris").value == 0.0
    assert exact(everything, "Paris | Rome | Oslo").value == 0.0
    ordered = task("Rome", "Paris", answer_mode="ordered")
    assert exact(ordered, "Rome, Paris").value == 1.0
    assert exact(ordered, "Paris, Rome").value == 0.0
    assert exact(task("1,000", "2", answer_mode="all"), "2, 1,000").value == 1.0


def test_a_mode_that_there_is_not_leaves_the_answer_unscored() -> None:
    verdict = exact(task("Rome", answer_mode="most"), "Rome")
    assert verdict.value is None and "any, all or ordered" in verdict.reason


@pytest.mark.parametrize("gold", ["** **", "` `", "__ __", r"\boxed{}", "|", "\u200b", "a|"])
def test_odd_golds_score_one_against_themselves(gold: str) -> None:
    assert exact(task(gold), gold).value == f1(task(gold), gold).value == 1.0


def test_a_boxed_answer_is_read_inside_the_box() -> None:
    assert exact(task("Rome"), r"It is \boxed{Rome}").value == 1.0


def test_golds_of_natural_questions_score_one_against_themselves_and_neighbours_about_nought() -> None:
    if not (SHARED / "nq.jsonl").is_file():
        pytest.skip(f"nq.jsonl is not here; put the published file into {SHARED}")
    tasks = list(read_tasks(SHARED / "nq.jsonl"))
    golds = [(task, gold) for task in tasks for gold in task.answer if gold.strip()]
    assert all(exact(task, gold).value == 1.0 and f1(task, gold).value == 1.0 for task, gold in golds)
    wrong = [exact(task, other.answer[0]).value for task, other in pairwise(tasks)]
    assert sum(value == 1.0 for value in wrong) <= 2
