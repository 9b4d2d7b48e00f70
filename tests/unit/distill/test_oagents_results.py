"""A results file that OAgents wrote (`tests/teams/oagents/team_results.py`) becomes training data."""

from __future__ import annotations

from coa.distill.importers.detect import read_traces
from coa.distill.team_run import EvaluatorVerdict, ModelCall, Purpose, SubRun, TeamRun, ToolResult
from support.recorded_teams import TESTS, distilled

RESULTS = TESTS / "corpus" / "oagents" / "results.jsonl"


def test_sub_tasks_belong_to_the_code_that_asked_for_them() -> None:
    (run,) = read_traces(RESULTS)
    assert isinstance(run, TeamRun)
    subs = [event for event in run.root.events if isinstance(event, SubRun)]
    assert [sub.run.request for sub in subs] == [
        "Find the number of inhabitants of Ostrel and of Brnov.",
        "Verify the number of inhabitants of Brnov.",
    ]
    calls = [call for call in run.root.model_calls if call.calls]
    ids = [item.id for call in calls for item in call.calls]
    assert len(set(ids)) == len(ids) == 5
    assert [sub.call_id for sub in subs] == [ids[1], ids[2]]
    assert [item.what for item in run.left_out] == ["thoughts, failed calls and tokens of sub-agents"]


def test_thoughts_plans_and_code_are_taken_out_of_the_words_around_them() -> None:
    (run,) = read_traces(RESULTS)
    assert isinstance(run, TeamRun)
    plan, first, *_, last = run.root.model_calls
    assert plan.purpose is Purpose.PLAN
    assert plan.text == "Two towns are named. Their numbers are not known.\n\n1. Ask for both numbers. 2. Add them."
    assert first.text == "I ask the search agent for both towns."
    assert dict(first.calls[0].arguments) == {"code": "found = search_agent(subject='towns')"}
    assert last.purpose is Purpose.ANSWER and isinstance(last, ModelCall)
    failed = next(event for event in run.root.events if isinstance(event, ToolResult))
    assert not failed.ok and "missing 1 required positional argument" in failed.text


def test_a_score_of_nought_without_a_thought_is_no_verdict() -> None:
    (run,) = read_traces(RESULTS)
    assert isinstance(run, TeamRun)
    assert not any(isinstance(event, EvaluatorVerdict) for event in run.root.events)


def test_a_request_in_code_that_failed_is_left_out_and_the_rest_is_training_data() -> None:
    steps = [(step.agent, step.text.strip()) for step in distilled(RESULTS).steps if step.agent != "think"]
    assert steps == [
        ("plan", "Two towns are named. Their numbers are not known.\n\n1. Ask for both numbers. 2. Add them."),
        ("web_search", "inhabitants of Ostrel"),
        ("observation", "Ostrel is a town of 279,500 people."),
        ("web_search", "inhabitants of Brnov"),
        ("observation", "Brnov is a town of 395,000 people."),
        ("web_search", "size of Brnov"),
        ("observation", "Brnov is a town of 395,000 people."),
        ("code", "```py\nprint(279500 + 395000)\n```"),
        ("observation", "674500"),
        ("answer", "674,500"),
    ]
