"""A recorded team beside the trajectory that is made of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings

from coa.distill.convert import convert
from coa.distill.team_run import (
    AgentRun,
    EvaluatorVerdict,
    ModelCall,
    Note,
    Skipped,
    Source,
    SubRun,
    TeamRun,
    ToolCall,
    ToolResult,
)
from coa.errors import StoreError
from coa.trajectory import Trajectory, load_profile
from coa.trajectory.types import Task, Usage
from coa.view import team_sources
from coa.view.sources import find_sources
from coa.view.teams import EventView, open_team_run, profile_for, team_runs_in, team_view
from coa.web.hues import HUES
from support.builders import web_run
from support.team_runs import team_runs

CORPUS = Path(__file__).parents[2] / "corpus" / "teams"
WEB = load_profile("web")


def everything(event: EventView) -> Iterator[EventView]:
    yield event
    for below in event["events"]:
        yield from everything(below)


def asked(name: str, number: int = 1, **arguments: Any) -> ToolCall:
    return ToolCall(id=f"c{number}", name=name, arguments=arguments, agent=name.endswith("_agent"))


def small_team(**changes: Any) -> TeamRun:
    """A manager that asks a searcher once in vain and once with success."""
    searcher = AgentRun(
        id="s", agent="search_agent", request="Find Ada.", answer="Ada Lovelace",
        events=(
            ModelCall(thought="I search.", calls=(asked("web_search", query="Ada"),), usage=Usage(prompt_tokens=7)),
            ToolResult(call_ids=("c1",), text="Ada Lovelace, 1815"),
            ModelCall(text="Ada Lovelace"),
        ),
    )  # fmt: skip
    root = AgentRun(
        id="m", agent="manager", request="Who?", answer="Ada",
        events=(
            ModelCall(thought="I ask.", calls=(asked("search_agent", 1, task="Find Ada."),)),
            ToolResult(call_ids=("c1",), text="the search agent is not there", ok=False),
            ModelCall(thought="Again.", calls=(asked("search_agent", 2, task="Find Ada."),)),
            SubRun(call_id="c2", run=searcher),
            ToolResult(call_ids=("c2",), text="Ada Lovelace", report_of=("s",)),
            Note(role="system", text="Hurry up."),
            ModelCall(thought="It is Ada.", text="Ada"),
        ),
    )  # fmt: skip
    made = TeamRun(task=Task(id="t", question="Who?"), root=root, source=Source(format="recorded", file="/x/y.json"))
    return made.model_copy(update=changes)


def test_every_event_leads_to_the_steps_that_were_made_of_it() -> None:
    view = team_view(small_team())
    events = {event["number"]: event for event in everything(view["tree"])}
    steps = [(step.agent, step.text) for step in convert(small_team(), WEB).steps]
    assert steps == [
        ("think", "I ask."), ("think", "I search."), ("web_search", "Ada"), ("observation", "Ada Lovelace, 1815"),
        ("think", "It is Ada."), ("answer", "Ada"),
    ]  # fmt: skip
    made_of = [[(events[n]["type"], events[n]["agent"]) for n in numbers] for numbers in view["steps"]]
    assert made_of == [
        [("model_call", "manager")], [("model_call", "search_agent")], [("model_call", "search_agent")],
        [("tool_result", "search_agent")], [("model_call", "manager")], [("run", "manager")],
    ]  # fmt: skip
    assert events[1]["steps"] == [0]
    assert [one["kind"] for one in events[1]["became"]] == ["thought", "left_out"]


def test_what_was_left_out_says_why() -> None:
    left = {
        (event["type"], event["text"]): event["became"][0]["why"][0]
        for event in everything(team_view(small_team())["tree"])
        if event["left_out"]
    }
    assert left[("tool_result", "the search agent is not there")] == "the call that it answers is not in the trajectory"
    assert left[("model_call", "")] == "it comments on a hand-over that failed, and asks again"
    assert left[("tool_result", "Ada Lovelace")] == "the report repeats what the run before it found"
    assert left[("note", "Hurry up.")] == "no agent wrote it: a message of the system"


def test_hand_overs_name_the_event_that_asked() -> None:
    view = team_view(small_team())
    found = [(one["by"], one["to"], one["outcome"], one["error"], one["event"]) for one in view["handovers"]]
    assert found == [
        ("manager", "search_agent", "failed", "the search agent is not there", 1),
        ("manager", "search_agent", "done", "", 3),
    ]


def test_members_have_hues_roles_and_their_own_usage() -> None:
    members = {member["name"]: member for member in team_view(small_team())["members"]}
    assert {member["hue"] for member in members.values()} <= set(HUES)
    assert members["manager"]["hue"] != members["search_agent"]["hue"]
    assert members["search_agent"]["usage"]["prompt_tokens"] == 7
    assert members["search_agent"]["usage"]["tool_calls"] == 1
    assert (members["search_agent"]["unmetered"], members["manager"]["unmetered"]) == (1, 3)
    assert members["search_agent"]["role"] == "act by default"


def test_what_a_dropped_member_did_is_left_out_with_its_reason() -> None:
    logger = AgentRun(id="l", agent="memory", events=(ModelCall(text="I note it."), ModelCall(text="And that.")))
    team = small_team()
    root = team.root.model_copy(update={"events": (*team.root.events, SubRun(run=logger))})
    view = team_view(team.model_copy(update={"root": root}))
    dropped = [event for event in everything(view["tree"]) if event["agent"] == "memory"]
    assert [event["left_out"] for event in dropped] == [True, True, True]
    assert all("housekeeping" in event["became"][0]["why"][0] for event in dropped)


def test_copied_context_is_marked() -> None:
    call = ModelCall(text="From before.", copied=True)
    team = small_team(root=small_team().root.model_copy(update={"events": (call,)}))
    (event,) = team_view(team)["tree"]["events"]
    assert event["copied"] and event["left_out"]
    assert event["became"][0]["why"] == ["context repeated from elsewhere"]


def test_a_program_is_shown_where_it_was_written() -> None:
    code = "x = 6 * 7\nprint(x)"
    events = (
        ModelCall(thought="I count.", calls=(ToolCall(id="p", name="python_interpreter", arguments={"code": code}),)),
        ToolResult(call_ids=("p",), text="42"),
    )
    team = small_team(root=AgentRun(id="m", agent="solver", answer="42", events=events))
    view = team_view(team, load_profile("code"))
    written, returned = view["tree"]["events"]
    assert written["calls"][0]["block"]["text"] == code
    assert written["calls"][0]["block"]["tokens"] is not None
    assert [one["kind"] for one in written["became"]] == ["thought", "call"]
    assert returned["steps"] == [2]


def test_verdicts_carry_judge_label_and_score() -> None:
    events = (*small_team().root.events, EvaluatorVerdict(judge="grader", label="good", score=0.5, text="Fine."))
    team = small_team(root=small_team().root.model_copy(update={"events": events}))
    assert team_view(team)["tree"]["events"][-1]["about"] == "grader, good, 0.5"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(team_runs())
def test_any_team_can_be_shown(team: TeamRun) -> None:
    view = team_view(team)
    orjson.dumps(view)
    numbers = [event["number"] for event in everything(view["tree"])]
    assert numbers == list(range(len(numbers)))
    steps = convert(team, profile_for(team)).steps
    assert len(view["steps"]) == len(steps)
    for step, made_of in enumerate(view["steps"]):
        assert made_of, f"nothing is said to have become step {step}"


@pytest.mark.parametrize("source", [s for s in find_sources(CORPUS)], ids=lambda s: str(s.path.relative_to(CORPUS)))
def test_captured_teams_are_read_again_by_their_numbers(source: Any) -> None:
    runs = [(number, item) for number, item in team_runs_in(source.files) if not isinstance(item, Skipped)]
    assert runs
    for number, item in runs:
        assert open_team_run(source.files, number) == item
        if isinstance(item, TeamRun):
            assert all(team_view(item)["steps"])


def test_a_file_that_changed_is_read_anew(tmp_path: Path) -> None:
    file = tmp_path / "session.calls.jsonl"
    shutil.copy(CORPUS / "ag2" / "gateway" / "session.calls.jsonl", file)
    before = open_team_run([file], 0)
    shutil.copy(CORPUS / "crewai" / "gateway" / "session.calls.jsonl", file)
    assert open_team_run([file], 0) != before


def test_a_run_that_is_gone_is_an_error_that_says_so(tmp_path: Path) -> None:
    file = tmp_path / "session.calls.jsonl"
    shutil.copy(CORPUS / "ag2" / "gateway" / "session.calls.jsonl", file)
    with pytest.raises(StoreError, match="has no run number 100 any more"):
        open_team_run([file], 99)
    file.write_text('{"torn": ')
    with pytest.raises(StoreError, match="cannot be read"):
        open_team_run([file], 0)
    file.unlink()
    with pytest.raises(StoreError, match="cannot be read any more"):
        open_team_run([file], 0)


def test_files_that_are_too_large_to_keep_are_read_up_to_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team_sources, "MOST_CACHED", 100)
    files = [CORPUS / "ag2" / "gateway" / "session.calls.jsonl"]
    assert isinstance(open_team_run(files, 0), TeamRun)
    with pytest.raises(StoreError):
        open_team_run(files, 99)


def test_the_cache_keeps_within_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = team_sources._Cache()
    files = [file for source in find_sources(CORPUS) for file in source.files if file.name == "session.calls.jsonl"]
    monkeypatch.setattr(team_sources, "MOST_CACHED", 60_000)
    for file in files:
        cache.item([file], 0)
    assert 1 <= len(cache._kept) < len(files)
    assert sum(size for size, _ in cache._kept.values()) <= 60_000


def test_trajectories_in_compressed_files_are_found_too(tmp_path: Path) -> None:
    import gzip

    file = tmp_path / "runs.jsonl.gz"
    file.write_bytes(gzip.compress(web_run().to_json().encode() + b"\n"))
    assert isinstance(open_team_run([file], 0), Trajectory)


def test_a_trace_may_name_a_profile_that_does_not_exist() -> None:
    task = Task(id="t", question="Who?", profile="/etc/<script>")
    assert team_view(small_team(task=task))["profile"] == "web"
