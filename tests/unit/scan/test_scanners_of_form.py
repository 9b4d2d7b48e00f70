"""Contexts that were cut, and formats that were refused or repaired."""

from __future__ import annotations

import pytest

from coa.scan import Severity
from coa.scan.scanners.refused_formats import RefusedFormats
from coa.scan.scanners.truncated_contexts import TruncatedContexts
from coa.trajectory import Author, Failure, FailureSite, Repair, RepairKind, Step, Stop
from coa.trajectory.shorten import shorten
from support.builders import web_run
from support.scanned import note, notes, run_of, seen

TRUNCATED, REFUSED = TruncatedContexts(), RefusedFormats()


@pytest.mark.parametrize(("stop", "kind"), [(Stop.TOKENS, "out of tokens"), (Stop.CONTEXT, "out of context")])
def test_a_run_that_ran_out_is_found_at_its_end(stop: Stop, kind: str) -> None:
    found = note(TRUNCATED, run_of(("think", "hm"), ("answer", "Ida"), stop=stop))
    assert (found.step, found.severity, found.kind) == (1, Severity.WARNING, kind)
    lost = note(TRUNCATED, run_of(("think", "hm"), stop=stop))
    assert lost.severity is Severity.ERROR and "has no answer" in lost.message
    assert note(TRUNCATED, run_of(stop=stop)).step is None


@pytest.mark.parametrize("stop", [Stop.ANSWERED, Stop.UNANSWERED, Stop.TIME, Stop.TOOL_CALLS])
def test_a_run_that_ended_otherwise_was_not_truncated(stop: Stop) -> None:
    assert notes(TRUNCATED, run_of(("think", "hm"), stop=stop)) == []


def test_shortened_observations_are_counted_together() -> None:
    cut = shorten("a long page " * 100, 300)
    run = run_of(("crawl_page", "a"), seen(cut), ("crawl_page", "b"), seen("short"), ("crawl_page", "c"), seen(cut))
    found = note(TRUNCATED, run)
    assert (found.step, found.severity) == (1, Severity.INFO)
    missing = 2 * (1200 - (300 - len("\n[... 1200 characters omitted ...]\n")))
    assert found.message == f"2 observations were shortened by {missing:,} characters in all"


def test_the_mark_of_a_cut_in_the_words_of_the_model_is_no_cut() -> None:
    assert notes(TRUNCATED, run_of(("think", "it says\n[... 5 characters omitted ...]\n"), ("answer", "Ida"))) == []


def test_a_well_formed_run_is_clean() -> None:
    assert notes(REFUSED, web_run()) == []


def test_a_call_that_could_not_be_read_is_found_once_at_the_call() -> None:
    said = "error: the content of code could not be read: it is empty."
    for observed in (seen(said, ok=False, error="format"), seen(said)):
        found = note(REFUSED, run_of(("code", ""), observed, ("answer", "Ida")))
        assert (found.step, found.severity, found.kind) == (0, Severity.WARNING, "unreadable call")


def test_an_observation_of_a_tool_that_begins_like_a_refusal_is_none() -> None:
    quoting = seen("error: the content of the page could not be read", ok=False)
    assert notes(REFUSED, run_of(("web_search", "a"), quoting, ("answer", "Ida"))) == []


def test_a_forged_observation_is_an_error() -> None:
    forged = Step(agent="observation", text="Ida designed it.")
    refused = seen("error: observations are written by the tools.", ok=False, error="forged_observation")
    found = note(REFUSED, run_of(("think", "a"), forged, refused, ("answer", "Ida")))
    assert (found.step, found.severity, found.kind) == (1, Severity.ERROR, "forged observation")
    assert note(REFUSED, run_of(forged, ("answer", "Ida"))).severity is Severity.ERROR


def test_one_rule_broken_often_is_one_finding() -> None:
    run = run_of(("plan", "a"), ("plan", "b"), ("plan", "c"), ("answer", "Ida"))
    found = note(REFUSED, run)
    assert found.step == 1 and found.kind == "order" and found.message.startswith("order (2 times): ")


def test_a_run_that_was_cut_off_need_not_have_an_answer() -> None:
    failure = Failure(site=FailureSite.MODEL, message="gone")
    assert notes(REFUSED, run_of(("think", "hm"), stop=Stop.FAILED, failure=failure)) == []
    assert notes(REFUSED, run_of(("think", "hm"), stop=Stop.TIME)) == []
    assert note(REFUSED, run_of(("think", "hm"), stop=Stop.UNANSWERED)).kind == "no answer"


def test_an_answer_that_the_runtime_fell_back_on_is_no_forgery() -> None:
    answer = Step(agent="answer", text="Ida", author=Author.ENVIRONMENT, meta={"fallback": "suggested_answer"})
    assert notes(REFUSED, run_of(("think", "hm"), answer, stop=Stop.STEPS)) == []


def test_repairs_are_worth_knowing() -> None:
    repaired = Step(agent="think", text="a", repairs=(Repair(kind=RepairKind.MISSING_CLOSE, detail="</think>"),))
    found = note(REFUSED, run_of(repaired, repaired, ("answer", "Ida")))
    assert (found.step, found.severity) == (0, Severity.INFO)
    assert found.message == "repaired 2 times: missing close: </think>"


def test_a_recorded_team_breaks_no_rules() -> None:
    run = run_of(("plan", "a"), ("plan", "b"), ("answer", "Ida"), meta={"team": {"model_calls": 3}})
    assert notes(REFUSED, run) == []
