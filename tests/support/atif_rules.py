"""The rules of ATIF v1.7, written down from its schema: what harbor's own models check, for where harbor is not."""

from __future__ import annotations

from datetime import datetime
from typing import Any

_ROOT = {
    "schema_version", "session_id", "trajectory_id", "agent", "steps", "notes", "final_metrics",
    "continued_trajectory_ref", "extra", "subagent_trajectories",
}  # fmt: skip
_STEP = {
    "step_id", "timestamp", "source", "model_name", "reasoning_effort", "message", "reasoning_content", "tool_calls",
    "observation", "metrics", "is_copied_context", "llm_call_count", "extra",
}  # fmt: skip
_METRICS = {
    "prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd", "prompt_token_ids", "completion_token_ids",
    "logprobs", "extra",
}  # fmt: skip
_TOTALS = {
    "total_prompt_tokens", "total_completion_tokens", "total_cached_tokens", "total_cost_usd", "total_steps", "extra",
}  # fmt: skip
_AGENT_ONLY = ("model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics")


def assert_atif(document: dict[str, Any], *, embedded: bool = False) -> None:
    assert set(document) <= _ROOT, set(document) - _ROOT
    assert document["schema_version"] in {f"ATIF-v1.{minor}" for minor in range(9)}
    assert not embedded or isinstance(document["trajectory_id"], str)
    agent = document["agent"]
    assert set(agent) <= {"name", "version", "model_name", "tool_definitions", "extra"}
    assert isinstance(agent["name"], str) and isinstance(agent["version"], str)
    assert all(isinstance(row, dict) for row in agent.get("tool_definitions") or ())
    assert document["steps"], "at least one step"
    assert set(document.get("final_metrics") or {}) <= _TOTALS
    below = document.get("subagent_trajectories") or []
    ids = [row["trajectory_id"] for row in below]
    assert len(ids) == len(set(ids)), "ids of embedded trajectories are unique among siblings"
    referred = []
    for number, step in enumerate(document["steps"], start=1):
        assert step["step_id"] == number
        referred += _step(step)
    assert set(referred) <= set(ids), "every reference can be resolved"
    for row in below:
        assert_atif(row, embedded=True)


def _step(step: dict[str, Any]) -> list[str]:
    assert set(step) <= _STEP, set(step) - _STEP
    assert step["source"] in ("system", "user", "agent")
    assert isinstance(step["message"], str)
    if "timestamp" in step:
        datetime.fromisoformat(step["timestamp"])
    if step["source"] != "agent":
        assert not any(step.get(name) is not None for name in _AGENT_ONLY)
    if step.get("llm_call_count") == 0 and step["source"] == "agent":
        assert step.get("metrics") is None and step.get("reasoning_content") is None
    assert set(step.get("metrics") or {}) <= _METRICS
    calls = set()
    for call in step.get("tool_calls") or ():
        assert set(call) <= {"tool_call_id", "function_name", "arguments", "extra"}
        assert isinstance(call["arguments"], dict)
        calls.add(call["tool_call_id"])
    referred = []
    for result in (step.get("observation") or {"results": []})["results"]:
        assert set(result) <= {"source_call_id", "content", "subagent_trajectory_ref", "extra"}
        assert result.get("source_call_id") is None or result["source_call_id"] in calls
        for ref in result.get("subagent_trajectory_ref") or ():
            assert ref.get("trajectory_id") or ref.get("trajectory_path")
            referred.append(ref["trajectory_id"])
    return referred
