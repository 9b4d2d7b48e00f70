"""A run as the timeline shows it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from coa.trajectory import Author, Repair, RepairKind, Step, Stop, Task, Trajectory, load_profile, observation
from coa.trajectory.shorten import shorten
from coa.trajectory.types import Failure, FailureSite, Tokens, Usage
from coa.web import timeline
from coa.web.highlighting import highlight
from coa.web.hues import HUES, hue_of

WEB = load_profile("web")


def trajectory(*steps: Step, stop: Stop = Stop.ANSWERED, failure: Failure | None = None) -> Trajectory:
    task = Task(id="1", question="Which tower is the tallest?")
    return Trajectory(task=task, profile="web", profile_hash=WEB.hash, steps=steps, stop=stop, failure=failure)


def test_a_finished_run_is_told_in_the_events_that_it_would_have_sent() -> None:
    run = trajectory(
        Step(agent="plan", text=" 1. Search. "),
        Step(agent="web_search", text="tallest tower"),
        observation("Vell tower", meta={"ok": True, "seconds": 0.25}),
        Step(agent="answer", text="Vell tower"),
    )
    events = timeline.events_of(run)
    kinds = [(event["type"], event.get("item")) for event in events]
    assert kinds == [
        ("began", 0), ("done", 0), ("began", 1), ("done", 1), ("result", 1), ("began", 2), ("done", 2), ("ended", None),
    ]  # fmt: skip
    plan, search, result, ended = events[1], events[3], events[4], events[-1]
    assert plan["type"] == "done" and plan["text"] == "1. Search." and plan["blocks"] == []
    assert search["type"] == "done" and search["summary"] == "tallest tower"
    assert result["type"] == "result" and result["ok"] and result["seconds"] == 0.25
    assert ended["type"] == "ended" and ended["answer"] == "Vell tower"


def test_a_note_that_answers_no_call_is_a_note() -> None:
    events = timeline.events_of(trajectory(Step(agent="plan", text="?"), observation("please answer")))
    assert events[2] == {"type": "note", "step": 1, "text": "please answer", "error": ""}


def test_a_verdict_is_shown_where_there_is_one() -> None:
    def passed(agent: str, text: str) -> bool | None:
        return timeline.done(0, Step(agent=agent, text=text), WEB)["passed"]

    assert passed("double_check", "It fits.\nscore: 4") is True
    assert passed("double_check", "It does not.\nscore: 1") is False
    assert passed("double_check", "no score") is None
    assert passed("plan", "score: 4") is None


def test_a_program_is_highlighted_and_its_summary_is_its_first_line() -> None:
    profile = load_profile("code")
    text = "```py\nprint(1)  # one\nprint(2)\n```"
    event = timeline.done(0, Step(agent=profile.tools[0], text=text), profile)
    (block,) = event["blocks"]
    assert event["summary"] == "print(1)  # one …"
    assert block["label"] == "program" and ("comment", "# one") in (block["tokens"] or [])


def test_a_call_that_cannot_be_read_is_shown_as_it_was_written() -> None:
    event = timeline.done(0, Step(agent="web_search", text="  "), WEB)
    assert event["blocks"] == [{"label": "call", "text": "  ", "tokens": None}]


def test_every_repair_has_its_kind_and_detail() -> None:
    repairs = (Repair(kind=RepairKind.MISSING_CLOSE), Repair(kind=RepairKind.LOOSE_TAG, detail="<PLAN>"))
    assert timeline.done(0, Step(agent="plan", text="?", repairs=repairs), WEB)["repairs"] == [
        {"kind": "missing close", "detail": ""},
        {"kind": "loose tag", "detail": "<PLAN>"},
    ]


def test_every_event_names_the_step_that_it_shows() -> None:
    run = trajectory(
        Step(agent="plan", text="?"),
        observation("note: go on"),
        Step(agent="web_search", text="tower"),
        observation("nothing"),
        Step(agent="answer", text="?"),
    )
    steps = [(event["type"], event.get("step")) for event in timeline.events_of(run)]
    assert steps == [
        ("began", 0), ("done", 0), ("note", 1), ("began", 2), ("done", 2), ("result", 3), ("began", 4), ("done", 4),
        ("ended", None),
    ]  # fmt: skip


def test_tokens_are_those_sampled_else_those_counted_else_unknown() -> None:
    def tokens(step: Step) -> int | None:
        return timeline.done(0, step, WEB)["tokens"]

    assert tokens(Step(agent="plan", text="?", tokens=Tokens(ids=(1, 2, 3)))) == 3
    assert tokens(Step(agent="plan", text="?", usage=Usage(completion_tokens=7))) == 7
    assert tokens(Step(agent="plan", text="?")) is None


def test_seconds_of_a_step_are_known_only_where_they_were_measured() -> None:
    assert timeline.done(0, Step(agent="plan", text="?", usage=Usage(seconds=1.5)), WEB)["seconds"] == 1.5
    assert timeline.done(0, Step(agent="plan", text="?", usage=Usage(completion_tokens=7)), WEB)["seconds"] is None
    assert timeline.result(0, observation("x", meta={"seconds": 2}))["seconds"] == 2.0


def test_what_the_environment_wrote_for_the_model_is_marked() -> None:
    given = Step(agent="answer", text="Ada", surface="<answer>Ada</answer>", given=8)
    assert timeline.done(0, given, WEB)["given"] == "<answer>"
    fallback = Step(agent="answer", text="Ada", author=Author.ENVIRONMENT, meta={"fallback": "suggested_answer"})
    event = timeline.done(0, fallback, WEB)
    assert event["author"] == "environment" and "suggested answer" in event["note"]


def test_a_result_says_what_was_cut_from_it() -> None:
    event = timeline.result(0, observation(shorten("word " * 1000, 200)))
    assert event["omitted"] > 4000
    assert timeline.result(0, observation("[a list]"))["omitted"] == 0


def test_a_result_names_its_error_and_the_pages_that_were_opened() -> None:
    pages: list[JsonValue] = [{"url": "https://a.example"}, {"url": "https://b.example", "error": "404"}, "odd"]
    event = timeline.result(0, observation("x", meta={"ok": False, "error": "timeout", "pages": pages}))
    assert (event["ok"], event["error"]) == (False, "timeout")
    assert [(page["url"], page["error"]) for page in event["pages"]] == [
        ("https://a.example", ""), ("https://b.example", "404"),
    ]  # fmt: skip


def test_sources_are_what_the_answer_cites_and_lead_to_the_web_only() -> None:
    found = observation("1. The Vell tower - https://towers.example/vell\n   tall", meta={"ok": True})
    pages: list[JsonValue] = [
        {"url": "https://towers.example/vell"},
        {"url": "javascript:alert(1)"},
        {"url": "k/Galbar"},
        {"url": "https://gone.example/", "error": "404"},
    ]
    run = trajectory(
        Step(agent="web_search", text="tower"), found,
        Step(agent="crawl_page", text="https://towers.example/vell"), observation("tall", meta={"pages": pages}),
        Step(agent="answer", text="The Vell tower."),
    )  # fmt: skip
    assert timeline.ended(run)["sources"] == [{"url": "https://towers.example/vell", "title": "The Vell tower"}]


def test_a_failure_is_told_with_its_reason() -> None:
    failure = Failure(site=FailureSite.MODEL, message="no answer from the server")
    ended = timeline.ended(trajectory(stop=Stop.FAILED, failure=failure))
    assert (ended["stop"], ended["failure"], ended["answer"]) == ("failed", "no answer from the server", None)


def test_the_legend_leaves_out_tools_that_cannot_be_called() -> None:
    assert "crawl_page" in timeline.profile_view(WEB)["agents"]
    agents = timeline.profile_view(WEB, ["web_search"])["agents"]
    assert "crawl_page" not in agents and agents["web_search"]["hue"] == "blue" and "plan" in agents


def test_usage_without_prices_has_no_cost() -> None:
    assert timeline.usage_view(Usage(prompt_tokens=3))["cost"] is None


@given(st.text())
def test_highlighted_code_is_the_code(code: str) -> None:
    pairs = highlight(code, "python")
    assert pairs is None or "".join(text for _, text in pairs) == code


def test_an_unknown_language_is_shown_plain() -> None:
    assert highlight("x", "no such language") is None


@pytest.mark.parametrize(
    ("color", "hue"),
    [("cyan", "cyan"), ("bright_green", "teal"), ("green", "green"), ("#ff8800", "orange"), ("purple", "violet"),
     ("white", "gray"), ("bright_black", "gray"), ("no colour", "gray"), ("", "gray")],
)  # fmt: skip
def test_every_colour_of_a_profile_is_a_hue_of_the_page(color: str, hue: str) -> None:
    assert hue_of(color) == hue
    assert hue in {*HUES, "gray"}
