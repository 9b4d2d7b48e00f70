"""ATIF, the Agent Trajectory Interchange Format (v1.8): an ATIF step ends with each observation.

Thoughts become `reasoning_content`, other roles become the message, with their tags, tool agents become `tool_calls`,
and answers of the environment become `observation`. Data for which ATIF has no field (profile, stop) are in `extra`.
"""

from __future__ import annotations

from typing import Any, Final

from coa.trajectory.profile import Kind, Profile
from coa.trajectory.shapes import Reading, read
from coa.trajectory.types import Author, Step, Trajectory

VERSION: Final = "ATIF-v1.8"


def to_atif(trajectory: Trajectory, profile: Profile) -> dict[str, Any]:
    prompt = trajectory.prompt or profile.messages(trajectory.task)
    steps: list[dict[str, Any]] = [
        {"source": "agent", "message": message.content, "is_copied_context": True}
        if message.role == "assistant"
        else {"source": message.role, "message": message.content}
        for message in prompt
    ]
    calls = 0
    current: dict[str, Any] | None = None
    for step in trajectory.steps:
        if step.author is Author.ENVIRONMENT:
            current = _observe(current, step, steps)
            continue
        if current is None or "observation" in current:
            current = {"source": "agent", "message": ""}
            steps.append(current)
        agent = profile.agents.get(step.agent)
        if agent is not None and agent.kind is Kind.THOUGHT:
            current["reasoning_content"] = _joined(current.get("reasoning_content"), step.text)
        elif agent is not None and agent.kind is Kind.TOOL:
            calls += 1
            current.setdefault("tool_calls", []).append(_call(step, profile, f"call_{calls}"))
        elif agent is not None and agent.kind is Kind.ANSWER:
            current["message"] = _joined(current["message"], step.text)
        else:
            current["message"] = _joined(current["message"], f"<{step.agent}>{step.text}</{step.agent}>")
    for number, row in enumerate(steps, start=1):
        row["step_id"] = number
    return _root(trajectory, steps)


def _root(trajectory: Trajectory, steps: list[dict[str, Any]]) -> dict[str, Any]:
    usage = trajectory.usage
    extra = {
        "profile": trajectory.profile,
        "stop": trajectory.stop.value,
        "task": trajectory.task.model_dump(mode="json", exclude_defaults=True),
        "scores": {name: score.model_dump(mode="json") for name, score in trajectory.scores.items()},
    }
    return {
        "schema_version": VERSION,
        "session_id": f"{trajectory.task.id}/{trajectory.sample}",
        "agent": {
            "name": "chain-of-agents",
            "version": str(trajectory.meta.get("version") or "unknown"),
            "model_name": trajectory.meta.get("model") and str(trajectory.meta["model"]),
        },
        "steps": steps,
        "final_metrics": {
            "total_prompt_tokens": usage.prompt_tokens,
            "total_completion_tokens": usage.completion_tokens,
            "total_cached_tokens": usage.cached_tokens,
            "total_steps": len(steps),
        }
        | ({"total_cost_usd": usage.cost} if usage.cost is not None else {}),
        "extra": extra,
    }


def _observe(current: dict[str, Any] | None, step: Step, steps: list[dict[str, Any]]) -> dict[str, Any]:
    """Attach an observation to the call that it answers. Without a call it becomes a message of the system."""
    if current is None:
        current = {"source": "system", "message": ""}
        steps.append(current)
    results = current.setdefault("observation", {"results": []})["results"]
    calls = current.get("tool_calls", [])
    result: dict[str, Any] = {"content": step.text}
    if len(results) < len(calls):
        result["source_call_id"] = calls[len(results)]["tool_call_id"]
    results.append(result)
    return current


def _call(step: Step, profile: Profile, call_id: str) -> dict[str, Any]:
    reading = read(profile.shape(step.agent), step.text)
    arguments = dict(reading.arguments) if isinstance(reading, Reading) else {"text": step.text}
    return {"tool_call_id": call_id, "function_name": step.agent, "arguments": arguments}


def _joined(before: str | None, text: str) -> str:
    return f"{before}\n\n{text}" if before else text
