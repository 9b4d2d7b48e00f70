"""Messages of AutoGen and of AG2. Real recordings of whole teams are in tests/corpus/teams."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from coa.distill.handovers import HandoverOutcome, handovers_of, with_handovers
from coa.distill.importers.ag2_messages import from_ag2
from coa.distill.importers.detect import read_traces
from coa.distill.member_names import named_in
from coa.distill.team_run import AgentRun, CodeCall, ModelCall, Source, SubRun, TeamRun, ToolCall, ToolResult
from coa.trajectory.types import Task

Json = dict[str, Any]


def only(tmp_path: Path, value: object) -> Any:
    file = tmp_path / "run.json"
    file.write_text(json.dumps(value))
    (run,) = read_traces([file])
    return run


def said(source: str, content: Any, kind: str = "TextMessage", **more: Any) -> Json:
    return {"source": source, "content": content, "type": kind, "models_usage": None, **more}


def test_a_thought_before_calls_is_text_and_before_a_text_is_reasoning(tmp_path: Path) -> None:
    calls = [{"id": "c1", "name": "add", "arguments": '{"a": 2}'}]
    messages = [
        said("user", "2+2?"), said("solver", "I add.", "ThoughtEvent"), said("solver", calls, "ToolCallRequestEvent"),
        said("solver", [{"call_id": "c1", "content": "4", "is_error": False}], "ToolCallExecutionEvent"),
        said("solver", "Done.", "ThoughtEvent"), said("solver", "4"),
    ]  # fmt: skip
    run = only(tmp_path, {"messages": messages, "stop_reason": None})
    first, last = run.root.model_calls
    assert (first.text, first.thought, dict(first.calls[0].arguments)) == ("I add.", "", {"a": 2})
    assert (last.text, last.thought, run.answer) == ("4", "Done.", "4")


def test_kinds_of_messages_that_are_no_turn_are_listed(tmp_path: Path) -> None:
    selected = said("selector", ["solver"], "SelectSpeakerEvent", id="m7")
    run = only(tmp_path, [said("user", "2+2?"), selected, said("solver", "4")])
    assert [(item.what, item.place) for item in run.left_out] == [("SelectSpeakerEvent of selector", "m7")]


def test_a_round_of_agents_without_hand_overs_keeps_all_of_them(tmp_path: Path) -> None:
    run = only(tmp_path, [said("user", "2+2?"), said("one", "3"), said("two", "No, 4."), said("one", "4")])
    assert [agent.agent for agent in run.root.walk()] == ["one", "two"]
    assert run.answer == "4"


def test_what_a_model_did_not_write_is_not_quoted_as_none() -> None:
    calls = [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}]
    results = [{"tool_call_id": "c1", "role": "tool", "content": "4"}, {"tool_call_id": "c2", "content": "5"}]
    history = [
        {"role": "assistant", "content": "2+2?"},
        {"role": "assistant", "name": "solver", "content": "None", "tool_calls": calls},
        {"role": "tool", "name": "_Group_Tool_Executor", "content": "4\n5", "tool_responses": results},
        {"role": "user", "name": "solver", "content": "4"},
    ]
    assert [(row["role"], row.get("content")) for row in from_ag2(history)] == [
        ("user", "2+2?"), ("assistant", ""), ("tool", "4"), ("tool", "5"), ("assistant", "4"),
    ]  # fmt: skip


def test_a_numbered_hand_over_means_the_agent_of_that_name() -> None:
    call = ToolCall(id="c1", name="transfer_to_worker_1")
    assert named_in(call, {"worker": "worker"}) == "worker"
    assert named_in(call, {"worker": "worker", "worker_1": "worker_1"}) == "worker_1"


def team_run(root: AgentRun) -> TeamRun:
    return with_handovers(TeamRun(task=Task(id="t", question="2+2?"), root=root, source=Source(format="test")))


def test_an_agent_that_only_carries_out_calls_is_no_member() -> None:
    call = ToolCall(id="c1", name="add", arguments={"a": 2})
    turns = [
        AgentRun(id="1", agent="solver", request="2+2?", events=(ModelCall(text="I add.", calls=(call,)),)),
        AgentRun(id="2", agent="executor", events=(CodeCall(call=call, text="4"),)),
        AgentRun(id="3", agent="solver", events=(ModelCall(text="4"),), answer="4"),
    ]
    root = team_run(AgentRun(id="0", agent="chat", events=tuple(SubRun(run=turn) for turn in turns))).root
    assert [agent.agent for agent in root.walk()] == ["solver"]
    assert [type(event) for event in root.events] == [ModelCall, ToolResult, ModelCall]


def test_a_failed_call_is_a_hand_over_if_its_words_then_went_to_a_member() -> None:
    wrong, right = (ToolCall(id=name, name=name, arguments={"request": "Add."}) for name in ("adder", "solver"))
    sub = AgentRun(id="1", agent="solver", request="Add.", events=(ModelCall(text="4"),), answer="4")
    events = (
        ModelCall(calls=(wrong,)), ToolResult(call_ids=("adder",), text="nobody", ok=False),
        ModelCall(calls=(right,)), SubRun(call_id="solver", run=sub), ToolResult(call_ids=("solver",), text="4"),
    )  # fmt: skip
    root = team_run(AgentRun(id="0", agent="manager", events=events)).root
    assert [found.outcome for found in handovers_of(root)] == [HandoverOutcome.FAILED, HandoverOutcome.DONE]
    own = team_run(AgentRun(id="0", agent="manager", tools=("adder", "solver"), events=events)).root
    assert [found.outcome for found in handovers_of(own)] == [HandoverOutcome.DONE]  # a tool of its own that failed
