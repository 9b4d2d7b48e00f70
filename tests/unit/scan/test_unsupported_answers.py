"""Answers that nothing in the run supports, and the many that only look like it."""

from __future__ import annotations

import pytest

from coa.scan import Severity
from coa.scan.scanners.unsupported_answers import UnsupportedAnswers
from coa.trajectory import CodeTests, Message, Task
from support.scanned import note, notes, run_of, seen

SCANNER = UnsupportedAnswers()
PAGE = "Tamsel bridge: built in 1902 for 1,250,000 crowns, designed by Ida Kroll of German descent (1871-1940)."


def looked_up(
    answer: str, thought: str = "The page says it.", page: str = PAGE, question: str = "Who designed it?"
) -> list[object]:
    parts = (("web_search", "Tamsel bridge"), seen(page, ok=True), ("think", thought), ("answer", answer))
    return list(notes(SCANNER, run_of(*parts, question=question)))


@pytest.mark.parametrize("answer", ["Gustave Eiffel", "1911", "48", r"\boxed{777}"])
def test_an_answer_out_of_the_blue_is_found(answer: str) -> None:
    run = run_of(("web_search", "Tamsel bridge"), seen(PAGE), ("think", "I remember it."), ("answer", answer))
    found = note(SCANNER, run)
    assert (found.step, found.severity) == (3, Severity.WARNING) and "is in an observation" in found.message


@pytest.mark.parametrize(
    "answer",
    [
        "Ida Kroll", "IDA KROLL", "Idá Króll", "Kroll, most likely", "1902", "1 250 000 crowns", "1250000", "1,250,000",
        "Germany", "Tamsel", r"\boxed{1902}", "1902.0",
    ],
)  # fmt: skip
def test_what_an_observation_or_a_query_has_is_supported_however_it_is_written(answer: str) -> None:
    assert looked_up(answer) == []


@pytest.mark.parametrize(
    "answer", ["yes", "No", "B", "7", "12", r"\frac{3}{4}", "x^2 + 1", "```py\nprint(1)\n```", "", "unknown"]
)
def test_what_cannot_be_decided_is_left_alone(answer: str) -> None:
    assert looked_up(answer) == []


def test_a_number_that_the_model_worked_out_of_known_ones_is_supported() -> None:
    assert looked_up("69", thought="1940 - 1871 = 69") == []
    assert looked_up("69 years", thought="1940 - 1871") == []
    assert looked_up("2,000", thought="1902 + 98", page="In 1902, and 98 years later.") == []
    assert looked_up("1971", thought="1902 and 69: 1902 + 69. Since 1940 - 1871 = 69.") == []  # in two steps
    assert looked_up("75", thought="It is another one.") != []


@pytest.mark.parametrize(
    ("answer", "page"),
    [
        ("about 42 km", "The run is 42.195 km long."),
        ("1.4 billion", "It has 1,412,600,000 inhabitants."),
        ("1,400,000", "It has 1.4 million inhabitants."),
        ("25 %", "A share of 0.25 of it."),
        ("3.142", "It is 3.14159."),
        ("−40.5 °C", "It fell to -40.5 degrees."),
    ],
)
def test_a_rounded_number_is_supported(answer: str, page: str) -> None:
    assert looked_up(answer, page=page) == []


@pytest.mark.parametrize(
    ("answer", "page"), [("1900", "built in 1902"), ("3.2", "It is 3.14159."), ("480", "profit: 4795, 478")]
)
def test_a_number_beside_the_known_one_is_not(answer: str, page: str) -> None:
    assert looked_up(answer, page=page) != []


def test_what_the_user_wrote_supports_an_answer() -> None:
    assert looked_up("Eiffel", question="Was it Eiffel or Roebling?") == []
    task = Task(id="t", question="And he?", conversation=(Message(role="user", content="Tell me about Eiffel."),))
    run = run_of(("web_search", "it"), seen(PAGE), ("answer", "Eiffel"), task=task)
    assert notes(SCANNER, run) == []


def test_the_example_of_the_system_prompt_supports_nothing() -> None:
    prompt = (Message(role="system", content="Example: Gustave Eiffel"), Message(role="user", content="Who?"))
    run = run_of(("web_search", "it"), seen(PAGE), ("answer", "Gustave Eiffel"), prompt=prompt)
    assert note(SCANNER, run).kind == "words"


def test_a_program_and_its_output_support_an_answer() -> None:
    run = run_of(("code", "```py\nprint(17 * 23)\n```"), seen("391"), ("answer", "391"))
    assert notes(SCANNER, run) == []


def test_a_note_of_the_runtime_supports_nothing() -> None:
    refused = seen("error: the tool web_search is not available here. Eiffel", ok=False, error="no_such_tool")
    run = run_of(("web_search", "it"), refused, ("web_search", "that"), seen(PAGE), ("answer", "Eiffel"))
    assert note(SCANNER, run).step == 4


def test_without_an_observation_there_is_nothing_to_compare_with() -> None:
    assert notes(SCANNER, run_of(("think", "I know."), ("answer", "Gustave Eiffel"))) == []


def test_a_shortened_observation_makes_it_only_worth_knowing() -> None:
    run = run_of(("web_search", "it"), seen("start\n[... 500 characters omitted ...]\nend"), ("answer", "Eiffel"))
    assert note(SCANNER, run).severity is Severity.INFO


def test_an_answer_in_a_script_that_no_observation_uses_is_left_alone() -> None:
    assert looked_up("艾菲尔") == []


def test_programs_as_answers_are_left_alone() -> None:
    task = Task(id="t", question="Write it.", tests=CodeTests(functional="assert f() == 1"))
    assert notes(SCANNER, run_of(("web_search", "it"), seen(PAGE), ("answer", "Eiffel"), task=task)) == []


def test_a_very_long_answer_is_not_looked_at() -> None:
    blue = "zq"
    assert looked_up(blue) != []
    assert looked_up(blue + " of the" * 2_000) == [], "words that tell nothing do not make it short"
