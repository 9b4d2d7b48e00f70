"""Which spans of a LangGraph trace are agents, by the path of nodes in their metadata."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coa.distill.importers.detect import read_traces
from coa.distill.team_run import AgentRun, TeamRun, ToolResult

Spans = list[dict[str, Any]]


def _span(number: int, parent: int | None, kind: str, name: str, path: str = "", agent: str = "") -> dict[str, Any]:
    metadata = {"ls_integration": "langgraph", "langgraph_checkpoint_ns": path}
    metadata |= {"lc_agent_name": agent} if agent else {}
    return {
        "name": name,
        "context": {"trace_id": "0x1", "span_id": f"0x{number}"},
        "parent_id": None if parent is None else f"0x{parent}",
        "start_time": f"2026-01-01T00:00:{number:02d}Z",
        "status": {"status_code": "OK"},
        "events": [],
        "attributes": {"openinference.span.kind": kind, "metadata": json.dumps(metadata)},
    }


def _model(number: int, parent: int, path: str, text: str, agent: str = "", calls: int = 0) -> dict[str, Any]:
    span = _span(number, parent, "LLM", "ChatOpenAI", path, agent)
    said = "llm.output_messages.0.message"
    span["attributes"] |= {f"{said}.role": "assistant", f"{said}.content": text}
    for index in range(calls):
        call = f"{said}.tool_calls.{index}.tool_call"
        span["attributes"] |= {f"{call}.id": f"c{index}", f"{call}.function.name": "look_up"}
    return span


def _root(name: str, messages: list[Any]) -> dict[str, Any]:
    span = _span(1, None, "CHAIN", name)
    span["attributes"] |= {
        "input.value": json.dumps({"messages": messages}),
        "metadata": '{"ls_integration": "langgraph"}',
    }
    return span


def _read(tmp_path: Path, spans: Spans) -> AgentRun:
    (tmp_path / "spans.jsonl").write_text("".join(json.dumps(span) + "\n" for span in spans))
    (run,) = read_traces(tmp_path)
    assert isinstance(run, TeamRun) and run.task.question == "Write a poem."
    return run.root


def _agents(run: AgentRun) -> list[str]:
    return [agent.agent for agent in run.walk() if agent.model_calls]


@pytest.mark.parametrize("message", [["user", "Write a poem."], {"role": "user", "content": "Write a poem."}])
def test_nodes_that_call_models_are_agents(tmp_path: Path, message: Any) -> None:
    root = _read(tmp_path, [
        _root("LangGraph", [message]),
        _span(2, 1, "CHAIN", "planner", "planner:a"), _model(3, 2, "planner:a", "A plan."),
        _span(4, 1, "CHAIN", "writer", "writer:b"), _model(5, 4, "writer:b", "A poem."),
    ])  # fmt: skip
    assert _agents(root) == ["planner", "writer"] and root.answer == "A poem."


def test_a_span_is_no_agent_because_its_name_says_so(tmp_path: Path) -> None:
    root = _read(tmp_path, [
        _root("poet", [["user", "Write a poem."]]),
        _span(2, 1, "AGENT", "agent", "agent:a"), _model(3, 2, "agent:a", "A poem."),
    ])  # fmt: skip
    assert _agents(root) == ["poet"]


def test_an_agent_has_the_name_that_create_agent_was_given(tmp_path: Path) -> None:
    root = _read(tmp_path, [
        _root("LangGraph", [["user", "Write a poem."]]),
        _span(2, 1, "CHAIN", "model", "model:a", "poet"), _model(3, 2, "model:a", "A poem.", "poet"),
    ])  # fmt: skip
    assert _agents(root) == ["poet"]


def test_results_of_parallel_calls_are_in_the_order_of_the_calls(tmp_path: Path) -> None:
    spans = [_root("poet", [["user", "Write a poem."]]), _model(2, 1, "model:a", "I look up both.", "poet", calls=2)]
    for number, identity in ((3, "c1"), (4, "c0")):
        span = _span(number, 1, "TOOL", "look_up", f"tools:{number}", "poet")
        result = {"type": "tool", "content": f"found by {identity}", "tool_call_id": identity, "status": "success"}
        span["attributes"] |= {"tool.name": "look_up", "output.value": json.dumps({"type": "tool", "data": result})}
        spans.append(span)
    root = _read(tmp_path, [*spans, _model(5, 1, "model:b", "A poem.", "poet")])
    results = [event for event in root.events if isinstance(event, ToolResult)]
    assert [(*result.call_ids, result.text) for result in results] == [("c0", "found by c0"), ("c1", "found by c1")]
