"""CAMEL's log of model calls, with a file for each call in a folder for each agent, and saved memories of agents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from coa.distill.importers.detect import Traces, read_traces
from coa.distill.team_run import Skipped, SubRun, TeamRun


def _log(folder: Path, second: int, agent: str, messages: list[dict[str, Any]], reply: Any, **more: Any) -> None:
    file = folder / agent / f"conv_20260101_0000{second:02d}_000000.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    row: dict[str, Any] = {"request_timestamp": f"2026-01-01T00:00:{second:02d}", "model": "m", "agent_id": agent}
    row |= {"request": {"messages": messages}, "response_timestamp": f"2026-01-01T00:00:{second + 1:02d}", **more}
    if reply is not None:
        row["response"] = reply
    file.write_text(json.dumps(row, indent=4))


def _reply(text: str, *calls: dict[str, Any]) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, "tool_calls": list(calls) or None}
    return {"choices": [{"message": message}], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}


ASK: dict[str, Any] = {
    "id": "c1",
    "type": "function",
    "function": {"name": "ask_analyst", "arguments": '{"request": "Add 2 and 3."}'},
}
MANAGER: list[dict[str, Any]] = [
    {"role": "system", "content": "You are the manager."},
    {"role": "user", "content": "What is 2 + 3?"},
]
ANALYST: list[dict[str, Any]] = [
    {"role": "system", "content": "You are the analyst."},
    {"role": "user", "content": "Add 2 and 3."},
]
LATER: list[dict[str, Any]] = [
    *MANAGER,
    {"role": "assistant", "content": "I ask.", "tool_calls": [ASK]},
    {"role": "tool", "tool_call_id": "c1", "content": "It is 5."},
]


def test_the_files_of_a_folder_are_one_log(tmp_path: Path) -> None:
    _log(tmp_path, 1, "manager", MANAGER, _reply("I ask.", ASK))
    _log(tmp_path, 3, "analyst", ANALYST, _reply("It is 5."))
    _log(tmp_path, 5, "analyst", LATER, _reply("5"))  # the manager's call, under the id of the agent that it asked
    traces = Traces([tmp_path])
    (run,) = traces
    assert isinstance(run, TeamRun)
    assert [agent.agent for agent in run.root.walk()] == ["manager", "analyst"]
    assert (run.task.question, run.answer, run.source.format) == ("What is 2 + 3?", "5", "camel")
    assert (run.usage.model_calls, run.usage.prompt_tokens) == (3, 15)
    assert traces.files_read == len(traces.files) == 3


def test_a_file_that_is_no_log_is_listed_and_spoils_nothing(tmp_path: Path) -> None:
    _log(tmp_path, 1, "manager", MANAGER, _reply("5"))
    (tmp_path / "manager" / "conv_20260101_000009_000000.json").write_text("{")
    found = list(read_traces(tmp_path))
    assert [type(item) for item in found] == [Skipped, TeamRun]


def test_a_streamed_reply_is_known_to_be_missing(tmp_path: Path) -> None:
    _log(tmp_path, 1, "manager", MANAGER, "<openai.Stream object>")
    (run,) = read_traces(tmp_path)
    assert isinstance(run, TeamRun) and run.answer is None
    errors = [call.error for call in run.root.model_calls] + [item.reason for item in run.left_out]
    assert any("streamed" in (error or "") for error in errors)


def _memory(time: float, agent: str, role: str, **message: Any) -> dict[str, Any]:
    kind = "FunctionCallingMessage" if role == "function" else "BaseMessage"
    about = {"role_at_backend": role, "timestamp": time, "agent_id": agent}
    return {**about, "message": {"__class__": kind, "role_name": "System", "content": "", **message}}


def test_an_agent_that_is_asked_twice_works_twice(tmp_path: Path) -> None:
    again = {**ASK, "id": "c2", "function": {"name": "ask_analyst", "arguments": '{"request": "Add 4 and 5."}'}}
    rows = [
        _memory(0, "manager", "system", content="You lead."), _memory(1, "manager", "user", content="Both sums?"),
        _memory(2, "manager", "assistant", content="I ask.", tool_calls=[ASK]),
        _memory(5, "manager", "function", func_name="ask_analyst", result="It is 5.", tool_call_id="c1"),
        _memory(6, "manager", "assistant", content="I ask again.", tool_calls=[again]),
        _memory(9, "manager", "function", func_name="ask_analyst", result="It is 9.", tool_call_id="c2"),
        _memory(10, "manager", "assistant", content="5 and 9"),
        _memory(0, "analyst", "system", content="You add."), _memory(3, "analyst", "user", content="Add 2 and 3."),
        _memory(4, "analyst", "assistant", content="It is 5."), _memory(7, "analyst", "user", content="Add 4 and 5."),
        _memory(8, "analyst", "assistant", content="It is 9."),
    ]  # fmt: skip
    (tmp_path / "memory.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run,) = read_traces(tmp_path)
    assert isinstance(run, TeamRun) and run.answer == "5 and 9"
    subs = [event for event in run.root.events if isinstance(event, SubRun)]
    told = [(sub.call_id, sub.run.agent, sub.run.request, sub.run.answer) for sub in subs]
    assert told == [("c1", "analyst", "Add 2 and 3.", "It is 5."), ("c2", "analyst", "Add 4 and 5.", "It is 9.")]
