"""A team run as an ATIF document, the form in which recorded teams are kept.

Each agent run is an ATIF trajectory; runs of sub-agents are embedded and referred to by the result of their call. What
ATIF has no field for stands under `coa` in the `extra` of its step, result or root, so that `importers/atif_reader.py`
gives back the same team run, while any other reader of ATIF finds what it expects.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from coa.distill.team_run import AgentRun, CodeCall, Event, ModelCall, Note, SubRun, TeamRun, ToolCall, ToolResult
from coa.trajectory.formats.atif_export import VERSION
from coa.version import __version__

EXTRA: Final = "coa"
"""Our key in ATIF's `extra` objects."""


def to_atif(run: TeamRun) -> dict[str, Any]:
    document = _trajectory(run.root)
    usage = run.usage
    document["session_id"] = run.task.id
    document["extra"][EXTRA]["team"] = {
        "task": run.task.model_dump(mode="json", exclude_defaults=True),
        "stop": run.stop.value,
        "source": run.source.model_dump(mode="json", exclude_defaults=True),
        "left_out": [item.model_dump(mode="json", exclude_defaults=True) for item in run.left_out],
        **run.model_dump(mode="json", include={"failure", "reported_usage", "meta"}, exclude_defaults=True),
    }
    document["final_metrics"]["extra"] = {"team": usage.model_dump(mode="json", exclude_defaults=True)}
    return document


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
                _holder(steps, event)["observation"]["results"].append(_result(events, index, steps))
        else:
            steps.append(_outside_step(event))
    for number, step in enumerate(steps, start=1):
        step["step_id"] = number
    document: dict[str, Any] = {
        "schema_version": VERSION,
        "trajectory_id": run.id,
        "agent": {
            "name": run.agent,
            "version": __version__,
            "tool_definitions": [
                {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in run.tools
            ],
            "extra": {EXTRA: run.model_dump(mode="json", include={"type", "description"}, exclude_defaults=True)},
        },
        "steps": steps,
        "final_metrics": _totals(run, len(steps)),
        "extra": {
            EXTRA: {
                "answer": run.answer,  # said even where there is none, so that no reader guesses one
                **run.model_dump(mode="json", include={"error", "meta"}, exclude_defaults=True),
            }
        },
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
        step["tool_calls"] = [_call(item) for item in call.calls]
    if call.usage is not None:
        step["metrics"] = {
            "prompt_tokens": call.usage.prompt_tokens,
            "completion_tokens": call.usage.completion_tokens,
            "cached_tokens": call.usage.cached_tokens,
            "extra": {"seconds": call.usage.seconds},
        }
    step["extra"] = {
        EXTRA: call.model_dump(
            mode="json", include={"purpose", "messages", "rewritten", "error", "meta"}, exclude_defaults=True
        )
    }
    return step


def _outside_step(event: Event) -> dict[str, Any]:
    """A note or a verdict: nothing a model of the team wrote."""
    user = isinstance(event, Note) and event.role == "user"
    rest = event.model_dump(mode="json", exclude={"time", "copied", "text"}, exclude_defaults=True)
    text = getattr(event, "text", "")
    own = {EXTRA: {"kind": event.kind, **rest}}
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
    here = _calls_of(_holder(steps, event))
    if len(call_ids) == 1 and call_ids[0] in here:
        result["source_call_id"] = call_ids[0]
    elif call_ids:
        result["extra"][EXTRA]["call_ids"] = list(call_ids)
    return result


def _rest(event: Event, kind: str, written: set[str]) -> dict[str, Any]:
    return {"kind": kind, **event.model_dump(mode="json", exclude=written | {"kind"}, exclude_defaults=True)}


def _in_result_of_sub_run(events: list[Event], index: int) -> bool:
    """A report right after the run it is from goes into the same result, as ATIF means it."""
    if not 0 < index < len(events):
        return False
    report, before = events[index], events[index - 1]
    return (
        isinstance(report, ToolResult)
        and isinstance(before, SubRun)
        and report.report_of == (before.run.id,)
        and report.call_ids == ((before.call_id,) if before.call_id else ())
    )


def _holder(steps: list[dict[str, Any]], event: Event) -> dict[str, Any]:
    """The step whose observation an event belongs to: the last one, so that the order of events is kept."""
    step = steps[-1]
    step.setdefault("observation", {"results": []})
    return step


def _calls_of(step: dict[str, Any]) -> set[str]:
    return {call["tool_call_id"] for call in step.get("tool_calls", ())}


def _call(call: ToolCall) -> dict[str, Any]:
    row: dict[str, Any] = {
        "tool_call_id": call.id,
        "function_name": call.name,
        "arguments": call.model_dump(mode="json", include={"arguments"})["arguments"],
    }
    return row | ({"extra": {EXTRA: {"agent": True}}} if call.agent else {})


def _common(event: Event) -> dict[str, Any]:
    common: dict[str, Any] = {"is_copied_context": True} if event.copied else {}
    if event.time is not None:
        common["timestamp"] = datetime.fromtimestamp(event.time, UTC).isoformat()
    return common


def _totals(run: AgentRun, steps: int) -> dict[str, Any]:
    """Of this trajectory's own steps; the sub-agents' have their own."""
    used = [call.usage for call in run.model_calls if call.usage is not None]
    return {
        "total_prompt_tokens": _sum(part.prompt_tokens for part in used),
        "total_completion_tokens": _sum(part.completion_tokens for part in used),
        "total_cached_tokens": _sum(part.cached_tokens for part in used),
        "total_steps": steps,
    }


def _sum(numbers: Iterable[int]) -> int:
    return sum(numbers)
