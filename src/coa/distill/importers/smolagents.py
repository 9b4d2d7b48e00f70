"""Memories of smolagents agents: `agent.memory.get_full_steps()`, `RunResult.dict()`, or a log of step events.

A memory does not contain what managed agents did; a log of step callbacks does. In a log the steps of a managed agent
come before the step that called it, because a step is reported when it ends. So the run of a managed agent is attached
to the first later step of another agent that began before it. What only a live recorder sees is named in `left_out`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, Final

from coa.distill.importers.content import as_text, as_time, as_usage, team_run
from coa.distill.importers.smolagents_steps import action_call, is_step, merged_results, plan_event
from coa.distill.importers.trace_format import TraceFormat
from coa.distill.importers.wrapped import unwrapped_task
from coa.distill.team_run import AgentRun, Event, LeftOut, ModelCall, Source, SubRun, TeamRun, ToolCall
from coa.errors import TraceError
from coa.trajectory.identity import content_id
from coa.trajectory.types import Task, Usage

Json = Mapping[str, Any]
_LOG: Final = "recorder_events"
_MEMORY: Final = "manager_memory_get_full_steps"


def is_smolagents(value: object) -> bool:
    """A list of memory steps, or an object that holds one or a log."""
    if isinstance(value, list):
        # The task of a memory is a text; that of a trajectory is an object.
        return bool(value) and all(is_step(row) for row in value[:3]) and isinstance(value[0].get("task"), str)
    if not isinstance(value, Mapping):
        return False
    return _LOG in value or _MEMORY in value or ("state" in value and is_smolagents(value.get("steps")))


def from_smolagents(value: Any, file: str = "", place: str = "") -> TeamRun:
    document: Json = value if isinstance(value, Mapping) else {"steps": value}
    if isinstance(document.get(_LOG), list):
        root, left_out = _from_log(document)
    else:
        steps = document.get("steps") or document.get(_MEMORY)
        if not isinstance(steps, list):
            raise TraceError("it holds no list of steps")
        root = _from_memory(steps, document)
        reason = "a memory keeps only their reports; a recorder keeps all"
        left_out = [LeftOut(what="what managed agents did", reason=reason)]
    result = document.get("run_result")
    result = result if isinstance(result, Mapping) else document
    task = Task(id=content_id(root.request, root.answer), question=root.request)
    source, limited = Source(format=FORMAT.name, file=file, place=place), result.get("state") == "max_steps_error"
    return team_run(task, root, source, left_out, limited=limited, reported_usage=as_usage(result.get("token_usage")))


def _from_memory(steps: list[Any], document: Json) -> AgentRun:
    request, events, answer = "", [], document.get("output")
    for row in steps:
        if not isinstance(row, Mapping):
            raise TraceError("a step is not an object")
        if "task" in row and not request:
            request = as_text(row["task"])
        found, handed_in = _events(row, ())
        events += found
        answer = handed_in if answer is None else answer
    if not request:
        raise TraceError("no step holds the task")
    agent = as_text(document.get("name")) or "manager"
    return AgentRun(id="root", agent=agent, request=request, events=tuple(events), answer=_answer(answer))


class _Open:
    """A run whose steps are still coming in."""

    def __init__(self, row: Json, number: int) -> None:
        self.agent = as_text(row.get("agent")) or "agent"
        self.type = as_text(row.get("class"))
        self.id = f"{self.agent}-{number}"
        self.request = as_text(row.get("run_task"))
        self.start: float | None = None
        self.events: list[Event] = []
        self.answer: str | None = None

    def closed(self, request: str | None = None) -> AgentRun:
        request, events = request or unwrapped_task(self.request), tuple(self.events)
        return AgentRun(
            id=self.id, agent=self.agent, type=self.type, request=request, events=events, answer=self.answer
        )


def _from_log(document: Json) -> tuple[AgentRun, list[LeftOut]]:
    rows = [row for row in document[_LOG] if isinstance(row, Mapping) and isinstance(row.get("step"), Mapping)]
    if not rows:
        raise TraceError("its log of steps is empty")
    runs: dict[str, _Open] = {}
    waiting: list[_Open] = []
    members = {as_text(row.get("agent")) for row in rows}
    for number, row in enumerate(rows):
        key = f"{row.get('agent')}/{row.get('agent_id')}"
        run = runs.setdefault(key, _Open(row, number))
        step: Json = row["step"]
        if row.get("type") == "FinalAnswerStep":
            run.answer = _answer(step.get("output"))
            waiting.append(runs.pop(key))
            continue
        start = as_time((step.get("timing") or {}).get("start_time"))
        run.start = start if run.start is None else run.start
        mine = [
            other
            for other in waiting
            if other.agent != run.agent and (other.start is None or start is None or other.start >= start)
        ]
        waiting = [other for other in waiting if other not in mine]
        found, _ = _events(step, tuple(members), mine)
        run.events += found
    unfinished, left_out = list(runs.values()), []
    root = waiting.pop() if waiting else unfinished.pop()
    for run in [*waiting, *unfinished]:
        usage = Usage.sum(event.usage for event in run.events if isinstance(event, ModelCall) and event.usage)
        what, reason = f"a run of {run.agent}", "no step of a caller encloses it"
        left_out.append(LeftOut(what=what, reason=reason, usage=usage, place=run.id))
    full = next((as_text(row.get("task")) for row in document.get(_MEMORY, []) if isinstance(row, Mapping)), None)
    return root.closed(full or root.request), left_out


def _events(step: Json, members: tuple[str, ...], below: list[_Open] | None = None) -> tuple[list[Event], str | None]:
    if "plan" in step:
        return [plan_event(step)], None
    call = action_call(step, members) if "step_number" in step else None
    if call is None:
        return [], None
    calls, runs = call.calls, below or []
    events: list[Event] = [call]
    for number, run in enumerate(runs):
        named = next((item for item in calls if item.name == run.agent), calls[0] if calls else None)
        asked = _asked(named, run.agent)
        earlier = sum(other.agent == run.agent for other in runs[:number])
        request = asked[earlier] if earlier < len(asked) else None
        events.append(SubRun(call_id=named.id if named else None, run=run.closed(request)))
    events += merged_results(step, calls, [run.id for run in runs])
    final = bool(step.get("is_final_answer"))
    return events, _answer(step.get("action_output") or step.get("observations")) if final else None


def _asked(call: ToolCall | None, agent: str) -> list[str]:
    """The requests that a call puts to an agent; a log may have shortened them, the call has not."""
    if call is None:
        return []
    if call.name == agent:
        return [as_text(call.arguments["task"])] if "task" in call.arguments else []
    try:
        tree = ast.parse(as_text(call.arguments.get("code")))
    except (SyntaxError, ValueError, RecursionError):
        return []
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == agent:
            given = [*node.args, *(item.value for item in node.keywords if item.arg == "task")]
            if given and isinstance(given[0], ast.Constant):
                found.append(str(given[0].value))
    return found


def _answer(value: object) -> str | None:
    return None if value is None else as_text(value)


FORMAT: Final = TraceFormat("smolagents", "smolagents memories", is_smolagents, read=from_smolagents, takes_lists=True)
