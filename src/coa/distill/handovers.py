"""Who asked whom in a team run: every way to call a member of the team brought into one form.

Frameworks write the same thing differently. A call of a member is a tool whose span encloses the member's run or stands
beside it, a transfer of control after which the member's run follows its caller's, or a generic tool with the member's
name among its arguments. Here each becomes what `team_run.py` describes: a `ToolCall` with `agent=True`, the member's
run as a `SubRun` with the id of that call, and a `ToolResult` that is the report. A call that failed has an error for a
result and no sub-run.

Runs pass through `with_handovers` once, where they leave the importers (`importers/detect.py`). `handovers_of` lists
what is there, for the converter and for people.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from typing import Any, Final

from coa.distill.code_actions import is_program
from coa.distill.member_names import (
    ERROR,
    generic,
    guessed_in,
    hands_over_control,
    named_in,
    plain_name,
    request_of,
)
from coa.distill.team_run import AgentRun, CodeCall, Event, LeftOut, ModelCall, SubRun, TeamRun, ToolCall, ToolResult

_LONG: Final = 12
"""Characters from which a text that is part of another shows that they belong together."""


class HandoverOutcome(StrEnum):
    DONE = "done"
    FAILED = "failed"
    RETURNED = "returned"
    """Control went back to an agent that had handed it over."""
    UNRECORDED = "unrecorded"
    """The member worked, and the trace does not say how."""


@dataclass(frozen=True, slots=True)
class Handover:
    """One agent asks another."""

    by: str
    to: str
    tool: str
    """The call's name; empty where the trace has the member's run and no call."""
    outcome: HandoverOutcome
    request: str = ""
    error: str = ""
    run: str = ""
    """Id of the run of the agent that asks."""
    call_id: str | None = None

    def __str__(self) -> str:
        via = f" by {self.tool}" if self.tool and plain_name(self.tool) != plain_name(self.to) else ""
        why = f": {self.error.strip().splitlines()[0][:200]}" if self.error.strip() else ""
        return f"{self.by} asked {self.to}{via}: {self.outcome}{why}"


def with_handovers(team_run: TeamRun) -> TeamRun:
    """The same run with every call of a member in the one form. A run that has it already is returned as it is."""
    team = _Team(team_run.root)
    root = team.recorded_once(team_run.root)
    root = team.nested(_carried_out(root))
    root = _without_wrapper(root)
    team.learn(root)
    root = team.linked(root)
    team.learn(root)
    root = team.marked(root, ())
    if root == team_run.root:
        return team_run
    changes: dict[str, Any] = {"root": root, "left_out": (*team_run.left_out, *team.left_out)}
    if team.inferred:
        changes["meta"] = {**team_run.meta, "inferred": _counted(team_run, root, team.inferred)}
    return TeamRun.model_validate({**dict(team_run), **changes})


def handovers_of(root: AgentRun) -> Iterator[Handover]:
    """Every call of a member in a whole run, in the order of calls."""
    team = _Team(root)
    team.learn(root)
    yield from _handovers(root, (), team)


def _handovers(run: AgentRun, above: tuple[str, ...], team: _Team) -> Iterator[Handover]:
    """`above` are the agents that wait for this one."""
    results = _results(run)
    members = {call.id for call in _calls(run) if call.agent}
    subs: dict[str | None, AgentRun] = {}
    for event in run.events:
        if isinstance(event, SubRun):
            subs.setdefault(event.call_id, event.run)
    for event in run.events:
        if isinstance(event, ModelCall) and not event.copied:
            asked = [(call, results.get(call.id)) for call in event.calls if call.agent]
        elif isinstance(event, CodeCall) and event.call.agent:
            asked = [(event.call, ToolResult(text=event.text, ok=event.ok))]
        else:
            asked = []
        for call, result in asked:
            meant, started = team.meant(call), subs.get(call.id)
            if result is not None and not result.ok:
                outcome = HandoverOutcome.FAILED
            elif started is not None:
                outcome = HandoverOutcome.DONE
            else:
                outcome = HandoverOutcome.RETURNED if meant in above else HandoverOutcome.UNRECORDED
            to = started.agent if started is not None else meant or guessed_in(call)
            error = result.text if result is not None and outcome is HandoverOutcome.FAILED else ""
            yield Handover(run.agent, to, call.name, outcome, request_of(call), error, run.id, call.id)
        if isinstance(event, SubRun) and not event.copied:
            if event.call_id not in members:
                error = "" if event.run.answer is not None else event.run.error or ""
                outcome = HandoverOutcome.FAILED if error else HandoverOutcome.DONE
                yield Handover(run.agent, event.run.agent, "", outcome, event.run.request, error, run.id, event.call_id)
            yield from _handovers(event.run, (*above, run.agent), team)


class _Team:
    """What is known of the team while its run is brought into form."""

    def __init__(self, root: AgentRun) -> None:
        self.names = {plain_name(run.agent): run.agent for run in root.walk()}
        self.left_out: list[LeftOut] = []
        self.inferred: list[str] = []
        """Links that the trace does not state, in words."""
        self._tools: dict[str, str] = {}
        """Tools that started a member's run somewhere, with the member."""

    def meant(self, call: ToolCall) -> str | None:
        """The member that a call asks, if it asks one."""
        return named_in(call, self.names) or self._tools.get(call.name)

    def recorded_once(self, run: AgentRun) -> AgentRun:
        """Without second records of one run: two instrumentations, or a span around the span of the same agent."""
        events: list[Event] = []
        for event in run.events:
            if not isinstance(event, SubRun):
                events.append(event)
                continue
            inner = self.recorded_once(event.run)
            if len(inner.events) == 1 and isinstance(only := inner.events[0], SubRun) and _same_task(inner, only.run):
                answer = inner.answer if inner.answer is not None else only.run.answer
                inner = only.run.model_copy(update={"request": inner.request or only.run.request, "answer": answer})
            event = event if inner is event.run else event.model_copy(update={"run": inner})
            known = next((i for i, e in enumerate(events) if isinstance(e, SubRun) and _same_run(e, event)), None)
            if known is None:
                events.append(event)
                continue
            first = events[known]
            assert isinstance(first, SubRun)
            if first.call_id is None:
                events[known] = first.model_copy(update={"call_id": event.call_id})
            reason = "it repeats the run that stands before it"
            self.left_out.append(
                LeftOut(what=f"a second record of the run of {inner.agent}", reason=reason, place=inner.id)
            )
        return _with_events(run, events)

    def nested(self, run: AgentRun) -> AgentRun:
        """Runs that began because control was transferred to them, put under the call that transferred it."""
        events: list[Event] = []
        for event in run.events:
            if isinstance(event, SubRun):
                inner = self.nested(event.run)
                event = event if inner is event.run else event.model_copy(update={"run": inner})
                last = next((i for i in reversed(range(len(events))) if isinstance(events[i], SubRun)), None)
                before = events[last] if last is not None else None
                if event.call_id is None and isinstance(before, SubRun) and last is not None:
                    taken = self._accepted(before.run, event)
                    if taken is not None:
                        events[last] = before.model_copy(update={"run": taken})
                        continue
            events.append(event)
        return _with_events(run, events)

    def _accepted(self, run: AgentRun, sub: SubRun) -> AgentRun | None:
        """`run` with `sub` in it, if `run` or one below it handed control over to the agent of `sub`."""
        last = next((i for i in reversed(range(len(run.events))) if isinstance(run.events[i], SubRun)), None)
        below = run.events[last] if last is not None else None
        if below is None and run.agent == sub.run.agent and run.answer is None:
            return _continued(run, sub.run)
        if isinstance(below, SubRun) and last is not None:
            if run.agent == sub.run.agent and below.call_id in _transfers(run):
                return _continued(run, sub.run)
            if (taken := self._accepted(below.run, sub)) is not None:
                events = list(run.events)
                events[last] = below.model_copy(update={"run": taken})
                return _with_events(run, events)
        linked = {event.call_id for event in run.events if isinstance(event, SubRun)}
        failed = _failures(run)
        for call in _calls(run):
            if call.id in linked or call.id in failed or not hands_over_control(call):
                continue
            if named_in(call, self.names) == sub.run.agent and sub.run.agent != run.agent:
                return _with_events(run, [*run.events, sub.model_copy(update={"call_id": call.id})])
        return None

    def learn(self, root: AgentRun) -> None:
        """Remember which tools start members."""
        for run in root.walk():
            calls = {call.id: call for call in _calls(run) if not is_program(call)}
            for event in run.events:
                if isinstance(event, SubRun) and event.call_id in calls:
                    self._tools[calls[event.call_id].name] = event.run.agent

    def linked(self, run: AgentRun) -> AgentRun:
        """Sub-runs that no call claims, given to the call that they answer."""
        events = [
            event.model_copy(update={"run": self.linked(event.run)}) if isinstance(event, SubRun) else event
            for event in run.events
        ]
        run = _with_events(run, events)
        taken = {event.call_id for event in run.events if isinstance(event, SubRun)}
        failed, results = _failures(run), _results(run)
        calls: list[ToolCall] = []
        for index, event in enumerate(run.events):
            if isinstance(event, ModelCall) and not event.copied:
                calls += [call for call in event.calls if not is_program(call)]
            elif isinstance(event, CodeCall):
                calls.append(event.call)
            elif isinstance(event, SubRun) and event.call_id is None and not event.copied:
                free = [call for call in calls if call.id not in taken]
                whole = [call for call in free if call.id not in failed]
                found = self._caller(event.run, whole, results) or self._caller(event.run, free, results)
                if found is not None:
                    taken.add(found[0].id)
                    if found[1]:
                        self.inferred.append(f"{run.agent} asked {event.run.agent}: {found[1]}")
                    events[index] = event.model_copy(update={"call_id": found[0].id})
        return _with_events(run, events)

    def _caller(
        self, run: AgentRun, calls: Sequence[ToolCall], results: Mapping[str, ToolResult]
    ) -> tuple[ToolCall, str] | None:
        """The call that a run answers, and how that is known where the call does not name the agent."""
        named = [call for call in calls if self.meant(call) == run.agent]
        asked = [call for call in calls if _asks(call, run.request)]
        for call in named:
            if call in asked or len(named) == 1:
                return call, ""
        if asked:
            return asked[0], "its request is what the call asks"
        if named:
            return named[0], ""
        report = (run.answer or "").strip()
        same = [call for call in calls if report and (known := results.get(call.id)) and known.text.strip() == report]
        return (same[0], "its report is the result of the call") if same else None

    def marked(self, run: AgentRun, above: tuple[str, ...]) -> AgentRun:
        """Calls of members marked as such, their runs before their reports, and failures known as failures."""
        runs: dict[str, list[str]] = {}
        for event in run.events:
            if isinstance(event, SubRun) and event.call_id is not None:
                runs.setdefault(event.call_id, []).append(event.run.id)
        results, agents = _results(run), set[str]()

        def mark(call: ToolCall) -> ToolCall:
            if call.agent or (not is_program(call) and self._is_handover(call, run, above, runs, results)):
                agents.add(call.id)
                return call if call.agent else call.model_copy(update={"agent": True})
            return call

        events: list[Event] = []
        for event in run.events:
            if isinstance(event, ModelCall):
                calls = tuple(map(mark, event.calls))
                event = event if calls == event.calls else event.model_copy(update={"calls": calls})
            elif isinstance(event, CodeCall):
                call = mark(event.call)
                event = event if call is event.call else event.model_copy(update={"call": call})
            elif isinstance(event, SubRun):
                event = event.model_copy(update={"run": self.marked(event.run, (*above, run.agent))})
            events.append(event)
        again = _retried(events, agents, runs)
        for index, event in enumerate(events):
            if not isinstance(event, ToolResult) or not agents.intersection(event.call_ids):
                continue
            reports = tuple(identity for call_id in event.call_ids for identity in runs.get(call_id, ()))
            if reports and not event.report_of:
                events[index] = event.model_copy(update={"report_of": reports})
            elif not reports and event.ok and (again.issuperset(event.call_ids) or ERROR.search(event.text)):
                events[index] = event.model_copy(update={"ok": False})
        return self._given_back(_with_events(run, _reports_last(events)), above)

    def _given_back(self, run: AgentRun, above: tuple[str, ...]) -> AgentRun:
        """What an agent says as it gives control back is its report."""
        last = next(
            (event for event in reversed(run.events) if isinstance(event, ModelCall) and not event.copied), None
        )
        if run.answer is not None or last is None or not (last.calls and last.text.strip()):
            return run
        back = all(call.agent and self.meant(call) in above and hands_over_control(call) for call in last.calls)
        return run.model_copy(update={"answer": last.text}) if back else run

    def _is_handover(
        self, call: ToolCall, run: AgentRun, above: tuple[str, ...], runs: Mapping[str, list[str]],
        results: Mapping[str, ToolResult],
    ) -> bool:  # fmt: skip
        if call.id in runs:
            return True
        meant = self.meant(call)
        if meant == run.agent:
            return False  # an agent's own tool of the same name
        if call.name in self._tools:
            return True
        result = results.get(call.id)
        failed = result is not None and (not result.ok or bool(ERROR.search(result.text)))
        if meant is None:
            return failed and (generic(call) or hands_over_control(call) or _asked_again(call, run, runs))
        if meant in above:
            return hands_over_control(call)
        # A tool may have the same bare name as a member; a call that says what it does cannot be one.
        return failed or plain_name(call.name) not in self.names


def _calls(run: AgentRun) -> Iterator[ToolCall]:
    for event in run.events:
        if isinstance(event, ModelCall) and not event.copied:
            yield from event.calls
        elif isinstance(event, CodeCall):
            yield event.call


def _results(run: AgentRun) -> dict[str, ToolResult]:
    return {identity: event for event in run.events if isinstance(event, ToolResult) for identity in event.call_ids}


def _failures(run: AgentRun) -> set[str]:
    """Calls that came to nothing."""
    failed = {identity for identity, result in _results(run).items() if not result.ok or ERROR.search(result.text)}
    return failed | {event.call.id for event in run.events if isinstance(event, CodeCall) and not event.ok}


def _transfers(run: AgentRun) -> set[str]:
    return {call.id for call in _calls(run) if hands_over_control(call)}


def _retried(events: Sequence[Event], agents: set[str], runs: Mapping[str, object]) -> set[str]:
    """Calls of members without a run that were made again, word for word, and then had one."""
    calls = [call for event in events if isinstance(event, ModelCall) for call in event.calls if call.id in agents]
    return {
        call.id
        for number, call in enumerate(calls)
        if call.id not in runs
        and any(
            later.id in runs and later.name == call.name and later.arguments == call.arguments
            for later in calls[number + 1 :]
        )
    }


def _carried_out(run: AgentRun) -> AgentRun:
    """Without the agents that only carry out the calls of the one before them, as AG2's executor of tools does."""
    events: list[Event] = []
    for event in run.events:
        if not isinstance(event, SubRun):
            events.append(event)
            continue
        inner = _carried_out(event.run)
        before = events[-1] if events else None
        made = [one for one in inner.events if isinstance(one, CodeCall)]
        if isinstance(before, SubRun) and made and len(made) == len(inner.events):
            asked = {call.id for one in before.run.model_calls for call in one.calls}
            waiting = asked - set(_results(before.run))
            if all(one.call.id in waiting for one in made):
                results = [ToolResult(time=m.time, call_ids=(m.call.id,), text=m.text, ok=m.ok) for m in made]
                run_before = before.run.model_copy(update={"events": (*before.run.events, *results)})
                events[-1] = before.model_copy(update={"run": run_before})
                continue
        events.append(event if inner is event.run else event.model_copy(update={"run": inner}))
    return _with_events(run, events)


def _asked_again(call: ToolCall, run: AgentRun, runs: Mapping[str, object]) -> bool:
    """Whether a member was then asked the same in the same words: the failed call named one that does not exist."""
    if not call.arguments or call.name in run.tools:
        return False
    ids = [other.id for other in _calls(run)]
    later = list(_calls(run))[ids.index(call.id) + 1 :]
    return any(other.id in runs and other.arguments == call.arguments for other in later)


def _reports_last(events: Sequence[Event]) -> list[Event]:
    """Each sub-run before the result that reports it."""
    ordered = list(events)
    for event in events:
        if not (isinstance(event, SubRun) and event.call_id is not None):
            continue
        at = ordered.index(event)
        report = next(
            (i for i, e in enumerate(ordered[:at]) if isinstance(e, ToolResult) and event.run.id in e.report_of), None
        )
        if report is not None:
            ordered.insert(report, ordered.pop(at))
    return ordered


def _asks(call: ToolCall, request: str) -> bool:
    request = request.strip()
    for value in call.arguments.values():
        text = value.strip() if isinstance(value, str) else ""
        if text and (text == request or (len(text) >= _LONG and text in request)):
            return True
    return False


def _same_task(outer: AgentRun, inner: AgentRun) -> bool:
    same = outer.request.strip() == inner.request.strip() or not (outer.request and inner.request)
    return plain_name(outer.agent) == plain_name(inner.agent) and same


def _same_run(one: SubRun, other: SubRun) -> bool:
    """Whether two sub-runs record the same run: the same words in answer to the same call, or at the same time."""
    words = _words(one.run)
    if not words or plain_name(one.run.agent) != plain_name(other.run.agent) or words != _words(other.run):
        return False
    if one.call_id is not None and other.call_id is not None:
        return one.call_id == other.call_id
    ends = [event.time for event in one.run.events if event.time is not None]
    if ends and other.time is not None:
        return other.time <= max(ends)
    return one.call_id is not None or other.call_id is not None


def _words(run: AgentRun) -> list[tuple[object, ...]]:
    return [
        (call.thought, call.text, *((item.name, dict(item.arguments)) for item in call.calls))
        for call in run.model_calls
    ]


def _continued(run: AgentRun, more: AgentRun) -> AgentRun:
    """An agent that went on after control came back to it; its calls keep ids of their own."""
    taken = {call.id for call in _calls(run)}
    fresh: dict[str, str] = {}
    for call in _calls(more):
        if call.id in taken:
            fresh[call.id] = next(name for n in count(2) if (name := f"{call.id}#{n}") not in taken)
        taken.add(fresh.get(call.id, call.id))
    events: list[Event] = [_renamed(event, fresh) for event in more.events] if fresh else list(more.events)
    answer = more.answer if more.answer is not None else run.answer
    return run.model_copy(update={"events": (*run.events, *events), "answer": answer, "error": more.error})


def _renamed(event: Event, fresh: Mapping[str, str]) -> Event:
    match event:
        case ModelCall():
            calls = tuple(call.model_copy(update={"id": fresh.get(call.id, call.id)}) for call in event.calls)
            return event.model_copy(update={"calls": calls})
        case ToolResult():
            return event.model_copy(update={"call_ids": tuple(fresh.get(one, one) for one in event.call_ids)})
        case CodeCall():
            call = event.call.model_copy(update={"id": fresh.get(event.call.id, event.call.id)})
            return event.model_copy(update={"within": fresh.get(event.within or "", event.within), "call": call})
        case SubRun():
            return event.model_copy(update={"call_id": fresh.get(event.call_id or "", event.call_id)})
    return event


def _without_wrapper(root: AgentRun) -> AgentRun:
    """The only agent inside a workflow that does nothing else is the root."""
    while len(root.events) == 1 and isinstance(only := root.events[0], SubRun) and only.call_id is None:
        inner, outer = (only.run.answer or "").strip(), root.answer
        # What a workflow hands out may be the agent's answer in a frame.
        answer = only.run.answer if outer is None or (inner and inner in outer) else outer
        changes = {"request": root.request or only.run.request, "answer": answer, "error": root.error or only.run.error}
        root = only.run.model_copy(update={**changes, "meta": {**root.meta, **only.run.meta}})
    return root


def _with_events(run: AgentRun, events: Sequence[Event]) -> AgentRun:
    return run if list(run.events) == list(events) else run.model_copy(update={"events": tuple(events)})


def _counted(before: TeamRun, root: AgentRun, notes: Sequence[str]) -> dict[str, Any]:
    """`meta["inferred"]` with the links that were inferred here."""
    runs = list(root.walk())
    known = before.meta.get("inferred")
    found: dict[str, Any] = (
        dict(known) if isinstance(known, Mapping) else {"agents": 0, "of_agents": len(runs), "links": 0}
    )
    found["links"] = int(found.get("links") or 0) + len(notes)
    found["of_links"] = max(int(found.get("of_links") or 0), len(runs) - 1, found["links"])
    found["notes"] = [*(found.get("notes") or ()), *dict.fromkeys(notes)]
    return found
