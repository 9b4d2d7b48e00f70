"""A recorded team beside the trajectory that is made of it: the tree of agents, what each said and did, and what became
of it.

Every run of an agent and every event in it has a number, in the order in which they began; that of the whole team is 0.
The conversion says of each thought, call and result which steps it became and why (`distill/compose.py`). Here these
reasons are brought to the events that they are about. Texts are texts: the page folds them and makes no markup of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Final, Literal, TypedDict

import orjson

from coa.distill.code_actions import is_program
from coa.distill.compose import Rewriting
from coa.distill.convert import convert_with_reasons
from coa.distill.handovers import handovers_of
from coa.distill.splice import MomentKind, Origin
from coa.distill.team_run import (
    AgentRun,
    CodeCall,
    EvaluatorVerdict,
    Event,
    ModelCall,
    Note,
    SubRun,
    TeamRun,
    ToolCall,
    ToolResult,
    decisions_in,
)
from coa.trajectory import Profile, Trajectory, Usage
from coa.view.team_sources import open_team_run, profile_for, team_runs_in
from coa.web.highlighting import highlight
from coa.web.timeline import Block, UsageView, usage_view


class Became(TypedDict):
    """What became of one thing that an agent said or did."""

    kind: str
    """A `MomentKind`: thought, plan, call, result, ...; `left_out` if it is no step."""
    tool: str
    steps: list[int]
    """Indices of steps of the trajectory; none if it was left out."""
    why: list[str]


class CallView(TypedDict):
    name: str
    member: bool
    """It asks a member of the team."""
    block: Block


class EventView(TypedDict):
    """An event, or the run of an agent (`type` is `run`), which has events of its own."""

    number: int
    type: Literal["run", "model_call", "tool_result", "code_call", "note", "verdict"]
    agent: str
    """The member whose event it is."""
    hue: str
    time: float | None
    copied: bool
    """Context repeated from elsewhere."""
    left_out: bool
    """It is in no step, although there is something in it."""
    steps: list[int]
    became: list[Became]
    text: str
    """What was written: the reply, the result, the note, the verdict; of a run, its answer."""
    thought: str
    error: str
    ok: bool
    calls: list[CallView]
    usage: UsageView | None
    model: str
    about: str
    """What else is known, in a few words: the purpose of a model call, the role of a note, the score of a verdict."""
    run: RunView | None
    events: list[EventView]


class RunView(TypedDict):
    id: str
    kind: str
    """What the source calls it, such as `CodeAgent`."""
    description: str
    request: str
    system: str
    tools: list[str]
    answered: bool


class MemberView(TypedDict):
    name: str
    hue: str
    role: str
    """What the conversion took it for, and by what, such as `act by name`; empty if it wrote nothing."""
    runs: int
    usage: UsageView
    unmetered: int
    """Model calls whose tokens nobody counted: with any of these, `usage` is a lower bound."""


class HandoverView(TypedDict):
    by: str
    to: str
    tool: str
    outcome: str
    request: str
    error: str
    event: int | None
    """Number of the event that asked."""


class LeftOutView(TypedDict):
    what: str
    reason: str
    place: str
    usage: UsageView | None


class TeamView(TypedDict):
    format: str
    file: str
    place: str
    profile: str
    """The trajectory is one of this profile."""
    stop: str
    failure: str
    tree: EventView
    members: list[MemberView]
    steps: list[list[int]]
    """For each step of the trajectory, the numbers of the events that it was made of."""
    handovers: list[HandoverView]
    inferred: list[str]
    """What the importer decided about who is who and who called whom, and could have decided otherwise."""
    left_out: list[LeftOutView]
    """What the importer could not read as an event."""
    problems: list[str]
    """What no step of the profile can express."""
    usage: UsageView
    reported_usage: UsageView | None
    unmetered: int


def team_view(team_run: TeamRun, profile: Profile | None = None) -> TeamView:
    """Without a profile, the trajectory is one of the profile that the task names, as the index has it."""
    profile = profile or profile_for(team_run)
    made = convert_with_reasons(team_run, profile)
    tree = _Tree(team_run, made.rewritings)
    root = tree.run(team_run.root)
    problems = made.trajectory.meta.get("problems")
    return TeamView(
        format=team_run.source.format,
        file=PurePath(team_run.source.file).name,
        place=team_run.source.place,
        profile=profile.name,
        stop=made.trajectory.stop.value,
        failure=team_run.failure.message if team_run.failure is not None else "",
        tree=root,
        members=_members(team_run, tree.hues, made.trajectory),
        steps=_by_step(root, len(made.trajectory.steps)),
        handovers=tree.handovers(),
        inferred=list(decisions_in(team_run)),
        left_out=[
            LeftOutView(what=one.what, reason=one.reason, place=one.place, usage=_usage(one.usage))
            for one in team_run.left_out
        ],
        problems=[str(one) for one in problems] if isinstance(problems, list) else [],
        usage=usage_view(team_run.usage),
        reported_usage=_usage(team_run.reported_usage),
        unmetered=team_run.unmetered_calls,
    )


def _usage(usage: Usage | None) -> UsageView | None:
    return usage_view(usage) if usage is not None else None


def _members(team_run: TeamRun, hues: Mapping[str, str], trajectory: Trajectory) -> list[MemberView]:
    roles = trajectory.meta.get("roles")
    found = []
    for name, hue in hues.items():
        runs = [run for run in team_run.root.walk() if run.agent == name]
        calls = [call for run in runs for call in run.model_calls]
        tools = sum(
            isinstance(event, CodeCall) or (isinstance(event, ToolResult) and not event.report_of)
            for run in runs
            for event in run.events
            if not event.copied
        )
        parts = [call.usage.model_copy(update={"model_calls": 0, "tool_calls": 0}) for call in calls if call.usage]
        usage = Usage.sum([*parts, Usage(model_calls=len(calls), tool_calls=tools)])
        role = roles.get(name) if isinstance(roles, dict) else None
        found.append(
            MemberView(
                name=name, hue=hue, role=str(role or ""), runs=len(runs), usage=usage_view(usage),
                unmetered=sum(call.usage is None for call in calls),
            )
        )  # fmt: skip
    return found


def _by_step(root: EventView, count: int) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(count)]
    waiting = [root]
    while waiting:
        event = waiting.pop()
        for step in event["steps"]:
            found[step].append(event["number"])
        waiting += reversed(event["events"])
    return found


@dataclass
class _Tree:
    team_run: TeamRun
    rewritings: Iterable[Rewriting]
    hues: dict[str, str] = field(default_factory=dict)
    """Of members, in the order in which they began."""
    numbers: dict[Origin, int] = field(default_factory=dict)
    count: int = 0

    def __post_init__(self) -> None:
        names = dict.fromkeys(run.agent for run in self.team_run.root.walk())
        self.hues = {name: _MEMBER_HUES[number % len(_MEMBER_HUES)] for number, name in enumerate(names)}
        self.became: dict[Origin, list[Became]] = {}
        for one in self.rewritings:
            if not one.steps and one.moment.lent:
                continue  # words that were to stand for a thought, and were not needed
            kind = MomentKind.LEFT_OUT if not one.steps and one.moment.kind is not MomentKind.CANDIDATE else None
            became = Became(
                kind=(kind or one.moment.kind).value, tool=one.moment.tool, steps=list(one.steps), why=list(one.reasons)
            )
            self.became.setdefault(one.moment.origin, []).append(became)

    def run(self, run: AgentRun, event: SubRun | None = None, dropped: str = "") -> EventView:
        view = self._event((run.id, None), "run", run, event, dropped)
        view |= {"text": run.answer or "", "error": run.error or "", "ok": run.error is None}
        view["run"] = RunView(
            id=run.id, kind=run.type, description=run.description, request=run.request, system=run.system,
            tools=list(run.tools), answered=run.answer is not None,
        )  # fmt: skip
        housekeeping = [why for one in view["became"] if not one["steps"] for why in one["why"]]
        silent = not any((run.id, index) in self.became for index in range(len(run.events)))
        below = dropped or (housekeeping[0] if housekeeping and silent else "")
        view["events"] = [self._of(run, one, index, below) for index, one in enumerate(run.events)]
        return view

    def _of(self, run: AgentRun, event: Event, index: int, dropped: str) -> EventView:
        if isinstance(event, SubRun):
            # The event has no number of its own: the run below it has one.
            self.numbers[(run.id, index)] = self.count
            return self.run(event.run, event, dropped)
        view = self._event((run.id, index), event.kind, run, event, dropped)
        match event:
            case ModelCall():
                about = [] if event.purpose == "act" else [f"to {event.purpose}"]
                about += ["its context was rewritten"] if event.rewritten else []
                view |= {"text": event.text, "thought": event.thought, "error": event.error or ""}
                view |= {"usage": _usage(event.usage), "model": event.model or "", "about": ", ".join(about)}
                view["ok"] = event.error is None
                view["calls"] = [_call(call) for call in event.calls]
            case ToolResult():
                about = ["the report of a member"] if event.report_of else []
                about += [f"answers {len(event.call_ids)} calls"] if len(event.call_ids) > 1 else []
                view |= {"text": event.text, "ok": event.ok, "about": ", ".join(about)}
            case CodeCall():
                view |= {"text": event.text, "ok": event.ok, "about": "called by code"}
                view["calls"] = [_call(event.call)]
            case Note():
                view |= {"text": event.text, "about": event.role}
            case EvaluatorVerdict():
                score = "" if event.score is None else f"{event.score:g}"
                view |= {"text": event.text, "about": ", ".join(filter(None, (event.judge, event.label, score)))}
        return view

    def _event(
        self,
        origin: Origin,
        kind: Literal["run", "model_call", "tool_result", "code_call", "note", "verdict"],
        run: AgentRun,
        event: Event | None,
        dropped: str,
    ) -> EventView:
        number, self.count = self.count, self.count + 1
        self.numbers[origin] = number
        became = self.became.get(origin, [])
        if dropped and not became:
            became = [Became(kind=MomentKind.LEFT_OUT.value, tool="", steps=[], why=[dropped])]
        copied = event is not None and event.copied
        steps = sorted({step for one in became for step in one["steps"]})
        left_out = copied or (bool(became) and all(one["kind"] == MomentKind.LEFT_OUT.value for one in became))
        return EventView(
            number=number, type=kind, agent=run.agent, hue=self.hues[run.agent],
            time=event.time if event is not None else None, copied=copied, left_out=left_out, steps=steps,
            became=became, text="", thought="", error="", ok=True, calls=[], usage=None, model="", about="", run=None,
            events=[],
        )  # fmt: skip

    def handovers(self) -> list[HandoverView]:
        """Once the tree is built."""
        asking = {
            (run.id, call.id): (run.id, index)
            for run in self.team_run.root.walk()
            for index, event in enumerate(run.events)
            for call in _calls(event)
        }
        return [
            HandoverView(
                by=one.by, to=one.to, tool=one.tool, outcome=one.outcome.value, request=one.request, error=one.error,
                event=self.numbers.get(asking.get((one.run, one.call_id or ""), (one.run, None))),
            )
            for one in handovers_of(self.team_run.root)
        ]  # fmt: skip


def _calls(event: Event) -> tuple[ToolCall, ...]:
    if isinstance(event, ModelCall):
        return event.calls
    return (event.call,) if isinstance(event, CodeCall) else ()


def _call(call: ToolCall) -> CallView:
    if is_program(call) and isinstance(code := call.arguments.get("code") or call.arguments.get("text"), str):
        block = Block(label="program", text=code, tokens=highlight(code, "python"))
    else:
        text = orjson.dumps(dict(call.arguments), option=orjson.OPT_INDENT_2, default=str).decode()
        block = Block(label="arguments", text=text, tokens=highlight(text, "json"))
    return CallView(name=call.name, member=call.agent, block=block)


_MEMBER_HUES: Final = ("blue", "orange", "green", "magenta", "teal", "yellow", "violet", "red", "lime", "cyan")
"""Neighbours are far apart on the wheel."""

__all__ = ["TeamView", "open_team_run", "profile_for", "team_runs_in", "team_view"]
