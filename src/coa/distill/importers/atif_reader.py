"""ATIF v1.0 to v1.8, ours and anybody's, with nested sub-agents.

A step is a model call; its observation's results follow it, and a result that refers to an embedded trajectory has that
run before it. Embedded trajectories that nothing refers to are not lost: they end up at the end of their parent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from coa.distill.atif_writer import EXTRA
from coa.distill.importers.content import FINISHING, MOST_DEEP, as_calls, as_text, as_time, as_usage
from coa.distill.importers.trace_format import TraceFormat
from coa.distill.team_run import (
    RECORDED,
    AgentRun,
    CodeCall,
    EvaluatorVerdict,
    Event,
    LeftOut,
    ModelCall,
    Note,
    Purpose,
    Source,
    SubRun,
    TeamRun,
    ToolCall,
    ToolResult,
)
from coa.errors import TraceError
from coa.trajectory.formats.tasks import content_id
from coa.trajectory.types import Stop, Task

Json = Mapping[str, Any]


def is_atif(row: object) -> bool:
    if not isinstance(row, Mapping):
        return False
    version = row.get("schema_version")
    return isinstance(version, str) and version.startswith("ATIF") and isinstance(row.get("steps"), list)


def from_atif(document: Json, file: str = "", place: str = "") -> TeamRun:
    reader = _Reader()
    root = reader.run(document, "", 0)
    ours = _ours(document).get("team")
    if isinstance(ours, dict):
        return TeamRun.model_validate(
            {
                "task": ours.get("task"),
                "root": root,
                "source": {**ours.get("source", {}), "format": RECORDED, "file": file, "place": place},
                "stop": ours.get("stop", Stop.ANSWERED),
                "left_out": (*ours.get("left_out", ()), *reader.left_out),
                **{name: ours[name] for name in ("failure", "reported_usage", "meta") if name in ours},
            }
        )
    if not root.request:
        raise TraceError("no step of the user says what the task was")
    session = document.get("session_id") or document.get("trajectory_id")
    return TeamRun(
        task=Task(id=str(session or content_id(root.request, "")), question=root.request),
        root=root,
        source=Source(format=FORMAT.name, file=file, place=place),
        stop=Stop.ANSWERED if root.answer is not None else Stop.UNANSWERED,
        left_out=tuple(reader.left_out),
        reported_usage=as_usage(document.get("final_metrics")),
    )


class _Reader:
    """Reads one document; keeps what it could not use."""

    def __init__(self) -> None:
        self.left_out: list[LeftOut] = []
        self._ids: set[str] = set()

    def run(self, document: Json, fallback: str, depth: int) -> AgentRun:
        if depth > MOST_DEEP:
            raise TraceError(f"sub-agents are nested more than {MOST_DEEP} deep")
        steps = document.get("steps")
        if not isinstance(steps, list) or not all(isinstance(step, Mapping) for step in steps):
            raise TraceError("its steps are not a list of objects")
        agent = document.get("agent")
        agent = agent if isinstance(agent, Mapping) else {}
        identity = self._unique(str(document.get("trajectory_id") or document.get("session_id") or fallback or "root"))
        below = self._embedded(document, identity, depth)
        ours = _ours(document)
        system, request, rest = _opening(steps)
        events: list[Event] = []
        answer: str | None = None
        for step in rest:
            found, handed_in = self._step(step, below, str(agent.get("model_name") or "") or None)
            events += found
            answer = handed_in if handed_in is not None else answer
        events += [SubRun(run=run) for run in below.values()]
        if document.get("continued_trajectory_ref"):
            self._leave("the continuation", f"it is in another file, {document['continued_trajectory_ref']}", identity)
        if answer is None and "answer" not in ours:
            answer = _last_words(events)
        own = {name: ours[name] for name in ("answer", "error", "meta") if name in ours}
        return AgentRun.model_validate(
            {
                "id": identity,
                "agent": str(agent.get("name") or "agent"),
                "tools": _tool_names(agent.get("tool_definitions")),
                "system": system,
                "request": request,
                "events": events,
                "answer": answer if not ours else None,
                **_ours(agent),
                **own,
            }
        )

    def _step(self, step: Json, below: dict[str, AgentRun], model: str | None) -> tuple[list[Event], str | None]:
        """The events of one step, and the answer where it hands one in."""
        ours = _ours(step)
        common: dict[str, Any] = {"copied": bool(step.get("is_copied_context")), "time": as_time(step.get("timestamp"))}
        text = as_text(step.get("message"))
        if step.get("source") != "agent":
            kind = ours.get("kind", "note")
            rest = {name: value for name, value in ours.items() if name != "kind"}
            outside: Event
            if kind == "verdict":
                outside = EvaluatorVerdict.model_validate({**common, "text": text, **rest})
            else:
                outside = Note.model_validate({**common, "text": text, "role": str(step.get("source")), **rest})
            return [outside, *self._results(step, (), below, common)], None
        calls = tuple(
            call.model_copy(update={"agent": bool(_ours(row).get("agent"))})
            for call, row in zip(as_calls(step.get("tool_calls")), _named(step.get("tool_calls")), strict=True)
        )
        finishing = [call for call in calls if call.name in FINISHING] if not ours else []
        answer = _handed_in(finishing[-1]) if finishing else None
        purpose = Purpose.ANSWER if finishing else Purpose.ACT
        if step.get("llm_call_count") == 0:
            # Orchestration without a model: what it calls becomes calls without a thought.
            return [*_dispatched(calls, common), *self._results(step, calls, below, common)], answer
        usage = as_usage(step.get("metrics"))
        seconds = _at(step, "metrics", "extra", "seconds")
        if usage is not None and isinstance(seconds, int | float):
            usage = usage.model_copy(update={"seconds": float(seconds)})
        call = ModelCall.model_validate(
            {
                **common,
                "purpose": purpose,
                "thought": as_text(step.get("reasoning_content")),
                "text": text,
                "calls": tuple(item for item in calls if item not in finishing),
                "model": step.get("model_name") or model,
                "usage": usage,
                **ours,
            }
        )
        done = {item.id for item in finishing}
        results = self._results(step, calls, below, common, skip=done)
        if _many_calls(step):
            call = call.model_copy(update={"meta": {**call.meta, "llm_call_count": step["llm_call_count"]}})
        return [call, *results], answer

    def _results(
        self,
        step: Json,
        calls: tuple[ToolCall, ...],
        below: dict[str, AgentRun],
        common: dict[str, Any],
        skip: set[str] | None = None,
    ) -> list[Event]:
        rows = _at(step, "observation", "results")
        events: list[Event] = []
        shared = {"copied": common["copied"]}
        for row in rows if isinstance(rows, list) else []:
            if not isinstance(row, Mapping):
                continue
            ours = dict(_ours(row))
            kind, report = ours.pop("kind", "tool_result"), ours.pop("report", None)
            source = row.get("source_call_id")
            ids = tuple(str(item) for item in ours.pop("call_ids", ())) or ((str(source),) if source else ())
            text = as_text(row.get("content"))
            if kind == "code_call":
                within = ids[0] if ids else None
                events.append(CodeCall.model_validate({**shared, "within": within, "text": text, **ours}))
                continue
            runs = self._referred(row, below)
            for run in runs:
                extra = ours if kind == "sub_run" else {}
                events.append(
                    SubRun.model_validate({**shared, "call_id": ids[0] if ids else None, "run": run, **extra})
                )
            if kind == "sub_run" and report is None:
                continue
            if skip and set(ids) & skip:
                continue
            rest = {name: value for name, value in (report or {}).items() if name != "kind"} if runs else ours
            reports = {"report_of": tuple(run.id for run in runs)} if runs else {}
            events.append(ToolResult.model_validate({**shared, "call_ids": ids, "text": text, **reports, **rest}))
        return events

    def _referred(self, row: Json, below: dict[str, AgentRun]) -> list[AgentRun]:
        refs = row.get("subagent_trajectory_ref")
        refs = refs if isinstance(refs, list) else [refs] if isinstance(refs, Mapping) else []
        runs = []
        for ref in refs:
            if not isinstance(ref, Mapping):
                continue
            # Before v1.7 there was no trajectory_id, and session_id was the only key.
            key = ref.get("trajectory_id") or ref.get("session_id")
            run = below.pop(str(key), None)
            if run is not None:
                runs.append(run)
            else:
                place = str(ref.get("trajectory_path") or key or "")
                self._leave("a sub-agent's run", "it is referred to but is not in this file", place)
        return runs

    def _embedded(self, document: Json, identity: str, depth: int) -> dict[str, AgentRun]:
        rows = document.get("subagent_trajectories")
        below: dict[str, AgentRun] = {}
        for number, row in enumerate(rows if isinstance(rows, list) else [], start=1):
            if not isinstance(row, Mapping):
                self._leave(f"sub-agent {number}", "it is not an object", identity)
                continue
            key = str(row.get("trajectory_id") or row.get("session_id") or f"{identity}/{number}")
            below[key if key not in below else f"{key}/{number}"] = self.run(row, f"{identity}/{number}", depth + 1)
        return below

    def _unique(self, identity: str) -> str:
        number = 2
        chosen = identity
        while chosen in self._ids:
            chosen, number = f"{identity}#{number}", number + 1
        self._ids.add(chosen)
        return chosen

    def _leave(self, what: str, reason: str, place: str) -> None:
        self.left_out.append(LeftOut(what=what, reason=reason, place=place))


def _opening(steps: list[Json]) -> tuple[str, str, list[Json]]:
    """System prompt, request, and the steps after them. Copied context before the request stays with the rest."""
    system: list[str] = []
    for index, step in enumerate(steps):
        if step.get("is_copied_context"):
            break
        if step.get("source") == "system" and "observation" not in step and not _ours(step):
            system.append(as_text(step.get("message")))
        elif step.get("source") == "user":
            return "\n\n".join(system), as_text(step.get("message")), _observed(step, steps[index + 1 :])
        else:
            break
    for index, step in enumerate(steps):
        if step.get("source") == "user":
            rest = [*steps[:index], *steps[index + 1 :]]
            return "", as_text(step.get("message")), rest
    return "", "", steps


def _observed(step: Json, rest: list[Json]) -> list[Json]:
    """What hangs on the request itself, before any model call, is kept as a step without words."""
    if "observation" not in step:
        return rest
    return [{"source": "agent", "message": "", "llm_call_count": 0, "observation": step["observation"]}, *rest]


def _dispatched(calls: tuple[ToolCall, ...], common: dict[str, Any]) -> list[Event]:
    return [CodeCall.model_validate({**common, "call": call, "meta": {"dispatched": True}}) for call in calls]


def _handed_in(call: ToolCall) -> str:
    for name in ("answer", "final_answer", "result", "output", "text", "message"):
        if call.arguments.get(name) is not None:
            return as_text(call.arguments[name])
    return as_text(dict(call.arguments)) if call.arguments else ""


def _last_words(events: list[Event]) -> str | None:
    """The last message of the agent, if nothing was called in it."""
    for event in reversed(events):
        if isinstance(event, ModelCall) and not event.copied:
            return event.text.strip() or None if not event.calls else None
    return None


def _named(rows: object) -> list[Json]:
    """The rows of which `as_calls` makes a call."""
    return [row for row in rows if as_calls([row])] if isinstance(rows, list) else []


def _tool_names(rows: object) -> tuple[str, ...]:
    names = []
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, Mapping):
            name = _at(row, "function", "name") or row.get("name")
            names += [str(name)] if name else []
    return tuple(names)


def _many_calls(step: Json) -> bool:
    count = step.get("llm_call_count")
    return isinstance(count, int) and count > 1


def _ours(row: Json) -> dict[str, Any]:
    found = _at(row, "extra", EXTRA)
    return dict(found) if isinstance(found, Mapping) else {}


def _at(row: Json, *path: str) -> Any:
    value: Any = row
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


FORMAT: Final = TraceFormat("atif", "ATIF", is_atif, read=from_atif)
