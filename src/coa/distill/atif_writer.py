"""A team run as an ATIF document, the form in which recorded teams are kept.

Each agent run is an ATIF trajectory; runs of sub-agents are embedded and referred to by the result of their call. What
ATIF has no field for is kept under `coa` in the `extra` of its step, result or root, so that `importers/atif_reader.py`
gives back the same team run, while any other reader of ATIF finds what it expects.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from coa.distill.team_run import AgentRun, CodeCall, Event, ModelCall, Note, SubRun, TeamRun, ToolResult
from coa.trajectory.formats.atif_export import VERSION
from coa.trajectory.types import Frozen, Usage
from coa.version import __version__

EXTRA: Final = "coa"
"""Our key in ATIF's `extra` objects."""
SAMPLED: Final = "sampled"
"""Key of a model call's meta for its tokens as they were sampled."""
TOKENS: Final = {"prompt_ids": "prompt_token_ids", "ids": "completion_token_ids", "logprobs": "logprobs"}
COUNTED: Final = ("seconds", "model_calls", "tool_calls")
"""What a call used that ATIF has no field for."""


def to_atif(run: TeamRun) -> dict[str, Any]:
    document = _trajectory(run.root)
    document["session_id"] = run.task.id
    document["extra"][EXTRA]["team"] = {
        "task": _dumped(run.task),
        "stop": run.stop.value,
        "source": _dumped(run.source),
        "left_out": [_dumped(item) for item in run.left_out],
        **_dumped(run, include={"failure", "reported_usage", "meta"}),
    }
    document["final_metrics"]["extra"] = {"team": _dumped(run.usage)}
    return document


def _dumped(part: Frozen, **which: Any) -> dict[str, Any]:
    return part.model_dump(mode="json", exclude_defaults=True, **which)


def _trajectory(run: AgentRun) -> dict[str, Any]:
    steps: list[dict[str, Any]] = []
    if run.system:
        steps.append({"source": "system", "message": run.system})
    steps.append({"source": "user", "message": run.request})
    below: list[dict[str, Any]] = []
    events = list(run.events)
    for index, event in enumerate(events):
        if isinstance(event, ModelCall):
            steps.append(_agent_step(event))
        elif isinstance(event, ToolResult | CodeCall | SubRun):
            if isinstance(event, SubRun):
                below.append(_trajectory(event.run))
            if not _in_result_of_sub_run(events, index):
                # It belongs to the observation of the last step, which keeps the order of events.
                results = steps[-1].setdefault("observation", {"results": []})["results"]
                results.append(_result(events, index, steps))
        else:
            steps.append(_outside_step(event))
    for number, step in enumerate(steps, start=1):
        step["step_id"] = number
    known = run.meta.get("tool_definitions")
    schemas = known if isinstance(known, Mapping) else {}
    tools = [
        {"type": "function", "function": {"name": name, "parameters": schemas.get(name, {"type": "object"})}}
        for name in run.tools
    ]
    about = {EXTRA: _dumped(run, include={"type", "description"})}
    used = [call.usage for call in run.model_calls if call.usage is not None]
    document: dict[str, Any] = {
        "schema_version": VERSION,
        "trajectory_id": run.id,
        "agent": {"name": run.agent, "version": __version__, "tool_definitions": tools, "extra": about},
        "steps": steps,
        "final_metrics": {  # of the steps of this trajectory alone; those of sub-agents have totals too
            "total_prompt_tokens": sum(part.prompt_tokens for part in used),
            "total_completion_tokens": sum(part.completion_tokens for part in used),
            "total_cached_tokens": sum(part.cached_tokens for part in used),
            "total_steps": len(steps),
        }
        | ({"total_cost_usd": cost} if (cost := Usage.sum(used).cost) is not None else {}),
        # The answer is written even where there is none, so that no reader guesses one.
        "extra": {EXTRA: {"answer": run.answer, **_dumped(run, include={"error", "meta"})}},
    }
    if below:
        document["subagent_trajectories"] = below
    return document


def _agent_step(call: ModelCall) -> dict[str, Any]:
    step: dict[str, Any] = {"source": "agent", "message": call.text, "llm_call_count": 1, **_common(call)}
    if call.thought:
        step["reasoning_content"] = call.thought
    if call.model:
        step["model_name"] = call.model
    if call.calls:
        step["tool_calls"] = [
            {
                "tool_call_id": item.id,
                "function_name": item.name,
                "arguments": item.model_dump(mode="json")["arguments"],
            }
            | ({"extra": {EXTRA: {"agent": True}}} if item.agent else {})
            for item in call.calls
        ]
    sampled = _sampled(call)
    metrics = {TOKENS[name]: values for name, values in sampled.items()}
    if (used := call.usage) is not None:
        metrics |= {name: getattr(used, name) for name in ("prompt_tokens", "completion_tokens", "cached_tokens")}
        metrics |= {"cost_usd": used.cost} if used.cost is not None else {}
        metrics["extra"] = {name: getattr(used, name) for name in COUNTED}
    if metrics:
        step["metrics"] = metrics
    own = _dumped(call, include={"purpose", "messages", "rewritten", "error", "meta"})
    if sampled:
        own["meta"] = {name: value for name, value in own["meta"].items() if name != SAMPLED}
    step["extra"] = {EXTRA: own | _exact_time(call)}
    return step


def _sampled(call: ModelCall) -> dict[str, Any]:
    """Tokens as they were sampled, for which ATIF has fields; empty where they are not of the form that it expects."""
    found = call.meta.get(SAMPLED)
    if not isinstance(found, Mapping) or not found or not set(found) <= set(TOKENS):
        return {}
    numbers = {"prompt_ids": int, "ids": int, "logprobs": float}
    fits = all(
        isinstance(values, list) and all(type(value) is numbers[name] for value in values)
        for name, values in found.items()
    )
    return dict(found) if fits else {}


def _outside_step(event: Event) -> dict[str, Any]:
    """A note or a verdict, which no model of the team wrote."""
    user = isinstance(event, Note) and event.role == "user"
    own = {EXTRA: _rest(event, event.kind, {"time", "copied", "text"}) | _exact_time(event)}
    text = getattr(event, "text", "")
    return {"source": "user" if user else "system", "message": text, **_common(event), "extra": own}


def _result(events: list[Event], index: int, steps: list[dict[str, Any]]) -> dict[str, Any]:
    event = events[index]
    result: dict[str, Any] = {}
    if isinstance(event, SubRun):
        result["subagent_trajectory_ref"] = [{"trajectory_id": event.run.id}]
        result["extra"] = {EXTRA: _rest(event, "sub_run", {"run", "call_id"})}
        call_ids: tuple[str, ...] = (event.call_id,) if event.call_id else ()
        if _in_result_of_sub_run(events, index + 1):
            report = events[index + 1]
            assert isinstance(report, ToolResult)
            result["content"] = report.text
            result["extra"][EXTRA]["report"] = _rest(report, "tool_result", {"text", "call_ids", "report_of"})
    elif isinstance(event, CodeCall):
        call_ids = (event.within,) if event.within else ()
        result |= {"content": event.text, "extra": {EXTRA: _rest(event, "code_call", {"within", "text"})}}
    else:
        assert isinstance(event, ToolResult)
        call_ids = event.call_ids
        result |= {"content": event.text, "extra": {EXTRA: _rest(event, "tool_result", {"text"})}}
    here = {call["tool_call_id"] for call in steps[-1].get("tool_calls", ())}
    if len(call_ids) == 1 and call_ids[0] in here:
        result["source_call_id"] = call_ids[0]
    elif call_ids:
        result["extra"][EXTRA]["call_ids"] = list(call_ids)
    return result


def _rest(event: Event, kind: str, written: set[str]) -> dict[str, Any]:
    """What ATIF has no field for. Whether it is copied is always said, because a step has one word for all in it."""
    copied = {} if "copied" in written else {"copied": event.copied}
    return {"kind": kind, **_dumped(event, exclude=written | {"kind"}), **copied}


def _in_result_of_sub_run(events: list[Event], index: int) -> bool:
    """Whether an event is the report of the run right before it: ATIF puts both into one result."""
    if not 0 < index < len(events):
        return False
    report, before = events[index], events[index - 1]
    return (
        isinstance(report, ToolResult)
        and isinstance(before, SubRun)
        and report.report_of == (before.run.id,)
        and report.call_ids == ((before.call_id,) if before.call_id else ())
    )


def _common(event: Event) -> dict[str, Any]:
    common: dict[str, Any] = {"is_copied_context": True} if event.copied else {}
    if (stamp := _stamp(event.time)) is not None:
        common["timestamp"] = stamp
    return common


def _stamp(time: float | None) -> str | None:
    try:
        return None if time is None else datetime.fromtimestamp(time, UTC).isoformat()
    except (OverflowError, ValueError, OSError):
        return None


def _exact_time(event: Event) -> dict[str, Any]:
    """The time where a timestamp, which has microseconds, does not give it back."""
    stamp = _stamp(event.time)
    known = None if stamp is None else datetime.fromisoformat(stamp).timestamp()
    return {} if known == event.time else {"time": event.time}
