"""Reads ATIF v1.0 to v1.8, written by us or by anybody else, with nested sub-agents.

A step is a model call; its observation's results follow it, and a result that refers to an embedded trajectory has that
run before it. Embedded trajectories that nothing refers to are not lost: they come at the end of their parent.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any, Final

from coa.distill.atif_writer import COUNTED, EXTRA, SAMPLED, TOKENS
from coa.distill.importers import content
from coa.distill.importers.content import (
    FINISHING,
    MOST_DEEP,
    as_calls,
    as_number,
    as_text,
    as_usage,
    at,
    handed_in,
    mappings,
)
from coa.distill.importers.messages import definitions_in
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
    ToolResult,
)
from coa.errors import TraceError
from coa.trajectory.identity import content_id
from coa.trajectory.types import Task, Usage

Json = Mapping[str, Any]


def is_atif(row: object) -> bool:
    if not isinstance(row, Mapping):
        return False
    version = row.get("schema_version")
    return isinstance(version, str) and version.startswith("ATIF") and isinstance(row.get("steps"), list)


def from_atif(document: Json, file: str = "", place: str = "") -> TeamRun:
    reader = _AtifDocument()
    root = reader.run(document, "", 0)
    ours = _ours(document).get("team")
    if isinstance(ours, dict):
        known = {name: ours[name] for name in ("task", "stop", "failure", "reported_usage", "meta") if name in ours}
        origin = {**ours.get("source", {}), "format": RECORDED, "file": file, "place": place}
        left_out = (*ours.get("left_out", ()), *reader.left_out)
        return TeamRun.model_validate({**known, "root": root, "source": origin, "left_out": left_out})
    if not root.request:
        raise TraceError("no step of the user says what the task was")
    session = document.get("session_id") or document.get("trajectory_id") or content_id(root.request, "")
    task, source = Task(id=str(session), question=root.request), Source(format=FORMAT.name, file=file, place=place)
    return content.team_run(task, root, source, reader.left_out, reported_usage=as_usage(document.get("final_metrics")))


class _AtifDocument:
    """Reads one document; `left_out` is what it could not use."""

    def __init__(self) -> None:
        self.left_out: list[LeftOut] = []
        self._ids: set[str] = set()

    def run(self, document: Json, fallback: str, depth: int) -> AgentRun:
        if depth > MOST_DEEP:
            raise TraceError(f"sub-agents are nested more than {MOST_DEEP} deep")
        steps, agent = document.get("steps"), document.get("agent")
        if not isinstance(steps, list) or not all(isinstance(step, Mapping) for step in steps):
            raise TraceError("its steps are not a list of objects")
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
            # The last message of the agent, if nothing was called in it.
            calls = (event for event in reversed(events) if isinstance(event, ModelCall) and not event.copied)
            last = next(calls, None)
            answer = last.text.strip() or None if last is not None and not last.calls else None
        own = {name: ours[name] for name in ("answer", "error", "meta") if name in ours}
        about: dict[str, Any] = {
            "id": identity,
            "agent": str(agent.get("name") or "agent"),
            "system": system,
            "request": request,
        }
        about |= {"tools": content.as_names(agent.get("tool_definitions")), "answer": answer if not ours else None}
        schemas = definitions_in(agent.get("tool_definitions"))
        if any("properties" in schema for schema in schemas.values()):
            about["meta"] = {"tool_definitions": schemas}
        return AgentRun.model_validate({**about, "events": events, **_ours(agent), **own})

    def _step(self, step: Json, below: dict[str, AgentRun], model: str | None) -> tuple[list[Event], str | None]:
        """The events of one step, and the answer where it hands one in."""
        ours = _ours(step)
        common: dict[str, Any] = {
            "copied": bool(step.get("is_copied_context")),
            "time": content.as_time(step.get("timestamp")),
        }
        text = as_text(step.get("message"))
        if step.get("source") != "agent":
            outside: Event
            if ours.pop("kind", "note") == "verdict":
                outside = EvaluatorVerdict.model_validate({**common, "text": text, **ours})
            else:
                outside = Note.model_validate({**common, "text": text, "role": str(step.get("source")), **ours})
            return [outside, *self._results(step, below, common)], None
        rows = [row for row in mappings(step.get("tool_calls")) if as_calls([row])]
        calls = tuple(
            call.model_copy(update={"agent": bool(_ours(row).get("agent"))})
            for call, row in zip(as_calls(step.get("tool_calls")), rows, strict=True)
        )
        finishing = [call for call in calls if call.name in FINISHING] if not _is_ours(step) else []
        answer = handed_in(finishing[-1]) if finishing else None
        purpose = Purpose.ANSWER if finishing else Purpose.ACT
        if step.get("llm_call_count") == 0:
            # Orchestration without a model: what it calls becomes calls without a thought.
            dispatched = [
                CodeCall.model_validate({**common, "call": call, "meta": {"dispatched": True}}) for call in calls
            ]
            return [*dispatched, *self._results(step, below, common)], answer
        usage = as_usage(step.get("metrics"))
        counted = {name: as_number(at(step, "metrics", "extra", name)) for name in COUNTED}
        if usage is not None:
            usage = Usage.model_validate({**dict(usage), **{n: v for n, v in counted.items() if v is not None}})
        wrote = {"purpose": purpose, "thought": as_text(step.get("reasoning_content")), "text": text, "usage": usage}
        kept = tuple(item for item in calls if item not in finishing)
        call = ModelCall.model_validate(
            {**common, **wrote, "calls": kept, "model": step.get("model_name") or model, **ours}
        )
        if more := _more(step):
            call = ModelCall.model_validate({**dict(call), "meta": {**call.meta, **more}})
        return [call, *self._results(step, below, common, frozenset(item.id for item in finishing))], answer

    def _results(
        self, step: Json, below: dict[str, AgentRun], common: dict[str, Any], skip: frozenset[str] = frozenset()
    ) -> list[Event]:
        events: list[Event] = []
        shared = {"copied": common["copied"]}
        for row in mappings(at(step, "observation", "results")):
            ours = _ours(row)
            kind, report = ours.pop("kind", "tool_result"), ours.pop("report", None)
            source = row.get("source_call_id")
            ids = tuple(str(item) for item in ours.pop("call_ids", ())) or ((str(source),) if source else ())
            text = as_text(row.get("content"))
            if kind == "code_call":
                within = ids[0] if ids else None
                events.append(CodeCall.model_validate({**shared, "within": within, "text": text, **ours}))
                continue
            runs, extra = self._referred(row, below), ours if kind == "sub_run" else {}
            called = {**shared, "call_id": ids[0] if ids else None, **extra}
            events += [SubRun.model_validate({**called, "run": run}) for run in runs]
            if (kind == "sub_run" and report is None) or skip.intersection(ids):
                continue
            rest = {name: value for name, value in (report or {}).items() if name != "kind"} if runs else ours
            reports = {"report_of": tuple(run.id for run in runs)} if runs else {}
            events.append(ToolResult.model_validate({**shared, "call_ids": ids, "text": text, **reports, **rest}))
        return events

    def _referred(self, row: Json, below: dict[str, AgentRun]) -> list[AgentRun]:
        refs = row.get("subagent_trajectory_ref")
        runs = []
        for ref in mappings([refs] if isinstance(refs, Mapping) else refs):
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
        numbered = (f"{identity}#{number}" for number in count(2))
        chosen = identity if identity not in self._ids else next(name for name in numbered if name not in self._ids)
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
            rest = steps[index + 1 :]
            if "observation" in step:
                # A result before any model call is kept as a step without words.
                bare = {"source": "agent", "message": "", "llm_call_count": 0, "observation": step["observation"]}
                rest = [bare, *rest]
            return "\n\n".join(system), as_text(step.get("message")), rest
        else:
            break
    for index, step in enumerate(steps):
        if step.get("source") == "user":
            return "", as_text(step.get("message")), [*steps[:index], *steps[index + 1 :]]
    return "", "", steps


def _more(step: Json) -> dict[str, Any]:
    """What a step of the agent says besides: tokens as sampled, how hard it thought, how many calls it sums up."""
    metrics, more = step.get("metrics"), dict[str, Any]()
    rows = {key: at(metrics, name) for key, name in TOKENS.items()}
    if sampled := {key: list(values) for key, values in rows.items() if isinstance(values, list)}:
        more[SAMPLED] = content.plain(sampled)
    if (effort := step.get("reasoning_effort")) is not None:
        more["reasoning_effort"] = content.plain(effort)
    made = step.get("llm_call_count")
    if isinstance(made, int) and made > 1:
        more["llm_call_count"] = made
    return more


def _is_ours(row: Json) -> bool:
    return isinstance(at(row, "extra", EXTRA), Mapping)


def _ours(row: Json) -> dict[str, Any]:
    found = at(row, "extra", EXTRA)
    return dict(found) if isinstance(found, Mapping) else {}


FORMAT: Final = TraceFormat("atif", "ATIF", is_atif, read=from_atif)
