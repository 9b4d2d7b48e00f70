"""Calls that are made twice, and calls that fail."""

from __future__ import annotations

import pytest

from coa.scan import Severity
from coa.scan.scanners.repeated_calls import RepeatedCalls
from coa.scan.scanners.tool_errors import ToolErrors
from coa.trajectory import Step
from support.scanned import note, notes, run_of, seen

REPEATED, ERRORS = RepeatedCalls(), ToolErrors()
PAGE = "Tamsel bridge: designed by Ida Kroll."


def test_the_same_call_is_found_at_its_second_place() -> None:
    run = run_of(
        ("web_search", "bridge  of Tamsel"),
        seen(PAGE),
        ("web_search", "bridge of Tamsel"),
        seen(PAGE),
        ("answer", "Ida"),
    )
    found = note(REPEATED, run)
    assert (found.step, found.severity, found.kind) == (2, Severity.WARNING, "web_search")
    assert "again with the arguments of step 0" in found.message and "bridge of Tamsel" in found.message


def test_a_call_that_the_runtime_refused_as_repeated_is_found() -> None:
    refused = seen("note: this very call was made before (step 1); ...", ok=False, error="repeated")
    run = run_of(
        ("web_search", "bridge"), seen(PAGE), ("web_search", "bridge"), refused, ("web_search", "bridge"), refused
    )
    found = note(REPEATED, run)
    assert found.step == 2 and "2 more times" in found.message and found.severity is Severity.WARNING


def test_other_arguments_and_another_tool_are_other_calls() -> None:
    run = run_of(("web_search", "bridge"), seen(PAGE), ("web_search", "bridges"), seen(PAGE), ("crawl_page", "bridge"),
                 seen(PAGE))  # fmt: skip
    assert notes(REPEATED, run) == []


@pytest.mark.parametrize("failed", ["error: no answer within 10 seconds", "error: HTTP 503 Service Unavailable"])
def test_a_call_that_met_a_passing_failure_may_be_made_again(failed: str) -> None:
    again = run_of(("web_search", "bridge"), seen(failed, ok=False), ("web_search", "bridge"), seen(PAGE, ok=True))
    assert notes(REPEATED, again) == []
    thrice = run_of(*again.steps, ("web_search", "bridge"), seen(PAGE, ok=True))
    assert note(REPEATED, thrice).step == 4


def test_a_failure_that_will_not_pass_is_no_reason_to_ask_again() -> None:
    missing = seen("error: no page 1409", ok=False)
    assert note(REPEATED, run_of(("crawl_page", "1409"), missing, ("crawl_page", "1409"), missing)).step == 2


def test_a_tool_whose_answer_changed_is_only_worth_knowing() -> None:
    run = run_of(("code", "```py\nprint(1)\n```"), seen("1"), ("code", "```py\nprint(1)\n```"), seen("2"))
    found = note(REPEATED, run)
    assert found.severity is Severity.INFO and found.message.endswith("the answer changed")


@pytest.mark.parametrize(
    ("observed", "kind"),
    [
        (seen("error: no answer within 10 seconds", ok=False, error="timeout"), "time-out"),
        (seen("page: http://a.example/\nerror: it answered with 404", ok=False), "HTTP 404"),
        (seen("error: ValueError: no", ok=False, error="ValueError"), "exception ValueError"),
        (
            seen("Traceback ...\nZeroDivisionError: division by zero", ok=False, verdict="RE"),
            "exception ZeroDivisionError",
        ),
        (seen("error: the program ran longer than 5 s", ok=False, verdict="TLE"), "time-out"),
        (seen("error: the site's robots.txt asks programs not to read this page", ok=False), "refused"),
        (seen("error: no page 1409", ok=False), "not found"),
        (seen("error: something else", ok=False), "error"),
        (seen("", ok=True), "empty"),
        (seen('serper found nothing for "bridge".', ok=True), "empty"),
        # without a record of the runtime
        (seen("Error executing tool 'visit_page': RuntimeError: HTTP 503 Please try again"), "HTTP 503"),
        (seen("Traceback (most recent call last):\n  File 'a'\nKeyError: 'x'"), "exception KeyError"),
    ],
)
def test_failures_are_told_apart_by_kind(observed: Step, kind: str) -> None:
    found = note(ERRORS, run_of(("crawl_page", "a"), observed))
    assert (found.step, found.kind) == (1, kind)
    assert found.message.startswith(f"{kind}: crawl_page: ")
    assert found.severity is (Severity.INFO if kind == "empty" else Severity.WARNING)


@pytest.mark.parametrize(
    "observed",
    [
        seen("HTTP 404 is the status for a page that is not found. Error pages differ.", ok=True),
        seen("How to fix error 503\nA server is overloaded, and the request timed out. Error: see below."),
        seen("results for x:\n1. Traceback (most recent call last) explained - KeyError"),
        seen("0"),
        seen("error: the content of code could not be read: it is empty.", ok=False, error="format"),
        seen("note: this very call was made before (step 1)", ok=False, error="repeated"),
    ],
)
def test_a_page_about_errors_and_a_note_of_the_runtime_are_no_tool_errors(observed: Step) -> None:
    assert notes(ERRORS, run_of(("crawl_page", "a"), observed)) == []


def test_one_failed_page_of_several_is_only_worth_knowing() -> None:
    pages = seen(
        "a page\n\npage: b\nerror: timed out", ok=True, pages=[{"url": "a"}, {"url": "b", "error": "timed out"}]
    )
    found = note(ERRORS, run_of(("crawl_page", "a | b"), pages))
    assert found.severity is Severity.INFO and found.message == "time-out: a part of crawl_page: timed out"


def test_what_the_model_forged_is_no_answer_of_a_tool() -> None:
    assert notes(ERRORS, run_of(("crawl_page", "a"), Step(agent="observation", text="error: HTTP 500"))) == []


def test_a_hand_over_that_failed_is_an_error_of_the_team() -> None:
    found = note(ERRORS, run_of(("answer", "Ida"), meta={"failed_handovers": ["manager asked librarian: failed"]}))
    assert found.step is None and found.kind == "failed hand-over"
