"""Models that go round in circles, and healthy runs that repeat a little."""

from __future__ import annotations

import pytest

from coa.scan import Severity
from coa.scan.scanners.loops import Loops, repetition
from coa.trajectory import Stop
from support.scanned import Part, note, notes, run_of, seen

SCANNER = Loops()
THOUGHT = "I should look for the designer of the bridge first."


def test_the_same_thought_three_times_is_a_loop() -> None:
    parts = [("think", THOUGHT), ("plan", "a"), ("think", THOUGHT), ("plan", "b"), ("think", f"  {THOUGHT}\n")]
    found = note(SCANNER, run_of(*parts, ("answer", "Ida")))
    assert (found.step, found.severity, found.kind) == (2, Severity.WARNING, "same thought")
    assert notes(SCANNER, run_of(*parts[:4], ("answer", "Ida"))) == []  # twice is none


def test_short_thoughts_may_come_again() -> None:
    parts = [part for name in "abcd" for part in (("think", "Next."), ("web_search", name), seen(name))]
    assert notes(SCANNER, run_of(*parts, ("answer", "Ida"))) == []


def test_a_cycle_of_steps_is_found_at_its_second_turn() -> None:
    turn: list[Part] = [("think", "I open the page of the bridge."), ("crawl_page", "a/Tamsel"), seen("nothing new")]
    found = note(SCANNER, run_of(("plan", "a"), *turn, *turn, *turn, stop=Stop.STEPS))
    assert (found.step, found.severity, found.kind) == (4, Severity.ERROR, "cycle of steps")
    assert found.message.startswith("3 times in a row: think > crawl_page, with ") and "no answer" in found.message
    assert notes(SCANNER, run_of(*turn, *turn, ("answer", "Ida"))) == []


def test_short_thoughts_around_the_same_call_are_a_loop_and_by_themselves_are_none() -> None:
    turn: list[Part] = [("think", "Try."), ("crawl_page", "1541"), seen("error: no page 1541", ok=False)]
    assert note(SCANNER, run_of(*turn, *turn, *turn, ("answer", "Ida"))).kind == "cycle of steps"
    assert notes(SCANNER, run_of(*[("think", "Try."), ("plan", "Go.")] * 3, ("answer", "Ida"))) == []


def test_a_long_cycle_needs_only_two_turns() -> None:
    turn: list[Part] = [
        ("plan", "find the bridge"),
        ("think", THOUGHT),
        ("web_search", "bridge"),
        seen("a"),
        ("reflection", "poor"),
    ]
    found = note(SCANNER, run_of(*turn, *turn, ("answer", "Ida")))
    assert found.step == 5 and found.message.startswith("2 times in a row: plan > think > web_search > reflection")


def test_a_cycle_with_other_words_is_progress() -> None:
    turns = [
        part
        for n in range(4)
        for part in (("think", f"I open page number {n} of the list."), ("crawl_page", f"p/{n}"), seen("a"))
    ]
    assert notes(SCANNER, run_of(*turns, ("answer", "Ida"))) == []


def test_words_repeated_within_a_step_are_found() -> None:
    found = note(SCANNER, run_of(("think", "The bridge" + ", a bridge of the city" * 20), ("answer", "Ida")))
    assert (found.step, found.kind) == (0, "words within a step") and "20 times" in found.message


@pytest.mark.parametrize(
    "text",
    ["short short short short", "-" * 500, "0.3333333333" * 30, "| --- | --- |" * 20, "a list of things. " * 4,
     " ".join(f"item {n} is here and costs {n * 7} crowns;" for n in range(60))],
)  # fmt: skip
def test_rules_digits_and_lists_are_no_repetition(text: str) -> None:
    assert repetition(text) is None


def test_programs_may_repeat_themselves() -> None:
    code = "```py\n" + "print('hello world again')\n" * 20 + "```"
    assert notes(SCANNER, run_of(("code", code), seen("a"), ("answer", "Ida"))) == []
