"""Agents that have no span of their own, and names of tools that differ between spans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from coa.distill.importers.detect import read_traces
from coa.distill.importers.wrapped import unwrapped_task
from coa.distill.team_run import AgentRun, ModelCall, Purpose, Skipped, SubRun, TeamRun


def _span(number: int, parent: int | None, kind: str, name: str, **attributes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "context": {"trace_id": "0x1", "span_id": f"0x{number}"},
        "parent_id": None if parent is None else f"0x{parent}",
        "start_time": f"2026-01-01T00:00:{number:02d}Z",
        "status": {"status_code": "OK"},
        "events": [],
        "attributes": {
            "openinference.span.kind": kind,
            **{key.replace("__", "."): value for key, value in attributes.items()},
        },
    }


def _model(number: int, parent: int, system: str, user: str, message: dict[str, Any]) -> dict[str, Any]:
    span = _span(number, parent, "LLM", "ChatCompletion", output__value=json.dumps({"choices": [{"message": message}]}))
    for index, (role, text) in enumerate((("system", system), ("user", user))):
        span["attributes"][f"llm.input_messages.{index}.message.role"] = role
        span["attributes"][f"llm.input_messages.{index}.message.content"] = text
    return span


def _call(identity: str, name: str, **arguments: str) -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def _read(tmp_path: Path, *spans: dict[str, Any]) -> AgentRun:
    (tmp_path / "spans.jsonl").write_text("".join(json.dumps(span) + "\n" for span in spans))
    (run,) = read_traces(tmp_path)
    assert isinstance(run, TeamRun), run
    return run.root


def test_what_works_inside_a_delegation_is_an_agent(tmp_path: Path) -> None:
    asked = {"task": "Add 2 and 3.", "context": "A long context, longer than the task.", "coworker": "analyst"}
    asks = {"content": "I ask.", "tool_calls": [_call("c1", "delegate_work_to_coworker", **asked)]}
    adds = {"content": "I add.", "tool_calls": [_call("c2", "calculator", expression="2 + 3")]}
    root = _read(
        tmp_path,
        _span(1, None, "AGENT", "manager", agent__name="manager", input__value="What is 2 + 3?"),
        _model(2, 1, "You are manager.", "What is 2 + 3?", asks),
        _span(3, 1, "TOOL", "Delegate work to coworker.run", tool__name="Delegate work to coworker",
              input__value=json.dumps(asked), output__value="It is 5."),
        _model(4, 3, "You are analyst.", "\nCurrent Task: Add 2 and 3.\n\nThis is the expected criteria for your final "
               "answer: A number.", adds),
        _span(5, 3, "TOOL", "calculator.run", tool__name="calculator", input__value='{"expression": "2 + 3"}',
              output__value="5"),
        _model(6, 3, "You are analyst.", "Current Task: Add 2 and 3.", {"content": "It is 5."}),
    )  # fmt: skip
    (sub,) = [event for event in root.events if isinstance(event, SubRun)]
    assert (sub.run.agent, sub.run.request, sub.run.answer, sub.call_id) == (
        "analyst",
        "Add 2 and 3.",
        "It is 5.",
        "c1",
    )
    assert [call.purpose for call in sub.run.model_calls] == [Purpose.ACT, Purpose.ACT]
    assert len(root.model_calls) == 1


def test_a_tool_that_uses_a_model_is_no_agent(tmp_path: Path) -> None:
    reads = {"content": "I read.", "tool_calls": [_call("c1", "read_page", url="http://a")]}
    root = _read(
        tmp_path,
        _span(1, None, "AGENT", "reader", agent__name="reader", input__value="What does the page say?"),
        _model(2, 1, "You are the reader.", "What does the page say?", reads),
        _span(3, 1, "TOOL", "read_page", tool__name="read_page", input__value='{"url": "http://a"}', output__value="x"),
        _model(4, 3, "You sum up pages.", "A long page.", {"content": "x"}),
    )
    assert [e.purpose for e in root.events if isinstance(e, ModelCall)] == [Purpose.ACT, Purpose.TOOL]
    assert not any(isinstance(event, SubRun) for event in root.events)


def test_the_log_of_a_crew_is_no_trace(tmp_path: Path) -> None:
    row = {"timestamp": "2026-01-01 00:00:00", "task_name": None, "task": "q", "agent": "a", "status": "started"}
    (tmp_path / "log.json").write_text(json.dumps([row, {**row, "status": "completed", "output": "5"}]))
    (found,) = read_traces(tmp_path)
    assert isinstance(found, Skipped) and "no known trace format" in found.reason


def test_a_task_is_read_without_the_frame_around_it() -> None:
    frame = "\n\nThis is the expected criteria for your final answer: A number.\nyou MUST return the actual content."
    assert unwrapped_task(f"\nCurrent Task: What is 2 + 3?{frame}") == "What is 2 + 3?"
    assert unwrapped_task(f"What is 2 + 3?{frame}") == "What is 2 + 3?"
    assert unwrapped_task("What is 2 + 3?") == "What is 2 + 3?"
