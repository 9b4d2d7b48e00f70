"""One team run -> one story: every thought, call and result once, in order, as moments that know no profile.

The tree of runs is walked depth-first, so the run of a sub-agent takes the place of the call that started it. What
orchestration wrote or repeated is dropped: wrapper prompts, reports of sub-agents as their caller saw them, copied
context, notes, and what models wrote inside tools. `compose` then decides which step of a profile a moment becomes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from pydantic import JsonValue

from coa.distill.code_actions import Workspace, is_program, without_logs
from coa.distill.handovers import Handover, Outcome, handovers_of
from coa.distill.roles import Role, Roles
from coa.distill.team_run import (
    AgentRun,
    CodeCall,
    EvaluatorVerdict,
    Event,
    ModelCall,
    Purpose,
    SubRun,
    TeamRun,
    ToolCall,
    ToolResult,
)


class MomentKind(StrEnum):
    THOUGHT = "thought"
    PLAN = "plan"
    REFLECTION = "reflection"
    CALL = "call"
    RESULT = "result"
    CANDIDATE = "candidate"
    CHECK = "check"
    ANSWER = "answer"


@dataclass(frozen=True, slots=True)
class Moment:
    kind: MomentKind
    by: str
    """The agent of the team that wrote it."""
    texts: tuple[str, ...] = ()
    """Pieces that the source keeps apart, reasoning first."""
    tool: str = ""
    arguments: Mapping[str, JsonValue] = field(default_factory=dict)
    ok: bool = True
    score: float | None = None
    label: str = ""
    finishes: bool = False
    """A program that computes what it hands in as the answer."""
    asked: bool = False
    """A thought that nobody wrote: it is what a silent agent asked of another."""
    problem: str = ""
    """Why no profile can express this."""

    @property
    def text(self) -> str:
        return "\n\n".join(self.texts)


_CANDIDATES: Final = ("answer", "candidate", "candidate_answer", "proposed_answer", "suggested_answer", "draft")
_NAMED: Final = re.compile(r"\banswer(?:\s+is)?\s*[:=]\s*[\"']?([^\n\"']{1,200}?)[\"']?\s*(?:$|\n)", re.IGNORECASE)
_REQUESTS: Final = ("task", "request", "question", "query", "input", "text", "instruction", "message")


def splice(team_run: TeamRun, roles: Roles) -> list[Moment]:
    runs = list(team_run.root.walk())
    names = {name for run in runs for name in (run.agent, *run.tools)}
    names |= {event.call.name for run in runs for event in run.events if isinstance(event, CodeCall)}
    asked = {(one.run, one.call_id): one for one in handovers_of(team_run.root)}
    story = _Story(roles, frozenset(names), asked)
    story.add_run(team_run.root, root=True)
    return story.moments


@dataclass
class _Story:
    roles: Roles
    names: frozenset[str]
    handovers: Mapping[tuple[str, str | None], Handover] = field(default_factory=dict)
    """By the id of the run that asks, and of its call."""
    moments: list[Moment] = field(default_factory=list)

    def add_run(self, run: AgentRun, *, root: bool = False, call: ToolCall | None = None) -> None:
        role = self.roles.of_agent(run, root=root)
        if role is Role.DROP:
            return
        if role is Role.VERIFY:
            self._verify(run, call)
            return
        inside = _AgentEvents(self, run, role)
        for index, event in enumerate(run.events):
            if not event.copied:
                inside.event(event, index)
        if root and run.answer is not None:
            self.add(MomentKind.ANSWER, run, run.answer)
        elif role in (Role.PLAN, Role.REFLECT) and not inside.spoke:
            # Only its report was recorded.
            self.add(_TEXTS[role], run, run.answer or "")

    def _verify(self, run: AgentRun, call: ToolCall | None) -> None:
        """Evidence that the verifier gathers comes first: between a suggestion and its check nobody acts."""
        inside = _AgentEvents(self, run, Role.ACT)
        last = max((i for i, e in enumerate(run.events) if isinstance(e, ModelCall) and not e.copied), default=-1)
        for index, event in enumerate(run.events):
            if not event.copied and index != last:
                inside.event(event, index)
        final = run.events[last] if last >= 0 else None
        pieces = _pieces(final) if isinstance(final, ModelCall) else []
        verdict = (run.answer or "").strip()
        if verdict and all(verdict != piece for piece in pieces):
            pieces.append(verdict)
        self.add(MomentKind.CANDIDATE, run, _candidate(run, call))
        self.add(MomentKind.CHECK, run, *pieces)

    def add(self, kind: MomentKind, run: AgentRun, *texts: str, **rest: object) -> None:
        kept = tuple(text.strip() for text in texts if text and text.strip())
        if kept or kind in (MomentKind.CALL, MomentKind.RESULT, MomentKind.CANDIDATE, MomentKind.CHECK):
            self.moments.append(Moment(kind, run.agent, kept, **rest))  # type: ignore[arg-type]

    def insert(self, moment: Moment, *, after: Moment | None) -> None:
        """Right after the call that it answers: calls made at once follow one another."""
        for index in reversed(range(len(self.moments))):
            if self.moments[index] is after:
                self.moments.insert(index + 1, moment)
                return
        self.moments.append(moment)


_TEXTS: Final = {
    Role.ACT: MomentKind.THOUGHT, Role.PLAN: MomentKind.PLAN, Role.REFLECT: MomentKind.REFLECTION,
    Role.VERIFY: MomentKind.THOUGHT,
}  # fmt: skip


@dataclass
class _AgentEvents:
    """One agent's events, in order."""

    story: _Story
    run: AgentRun
    role: Role
    workspace: Workspace = field(default_factory=Workspace)
    spoke: bool = False
    """Whether it wrote a text in its role."""
    waiting: dict[str, Moment] = field(default_factory=dict)
    """Calls whose result is still to come."""
    programs: dict[str, str] = field(default_factory=dict)
    """Programs by call id whose result is still to come; empty for those that only call the team."""
    finishing: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.roles = self.story.roles
        self.sub_runs = [event for event in self.run.events if isinstance(event, SubRun)]
        self.members = {event.run.agent for event in self.sub_runs}

    def event(self, event: Event, index: int) -> None:
        match event:
            case ModelCall():
                self._model_call(event, index)
            case ToolResult():
                self._result(event)
            case CodeCall() if not event.call.agent:
                self._call(event.call.name, event.call.arguments)
                self.story.add(MomentKind.RESULT, self.run, event.text, ok=event.ok)
            case SubRun():
                calls = (call for e in self.run.events if isinstance(e, ModelCall) for call in e.calls)
                self.story.add_run(event.run, call=next((call for call in calls if call.id == event.call_id), None))
            case EvaluatorVerdict():
                self.story.add(MomentKind.CHECK, self.run, event.text, score=event.score, label=event.label)

    def _model_call(self, call: ModelCall, index: int) -> None:
        if call.purpose is Purpose.TOOL or (call.error and not call.calls):
            return
        kind = _TEXTS[self.roles.of_call(call, self.role, self.run)]
        pieces = _pieces(call)
        if kind is MomentKind.THOUGHT:
            # The answer becomes a separate step, and a report is what its caller deals with.
            pieces = [piece for piece in pieces if piece != (self.run.answer or "").strip()]
        asked = not pieces and kind is MomentKind.THOUGHT
        if asked:
            # What an agent asks of another shows what it wants to do next.
            asking = (item.arguments for item in call.calls if self._acts(item))
            requests = (next((str(given[key]) for key in _REQUESTS if given.get(key)), "") for given in asking)
            pieces = [request for request in requests if request][:1]
        if kind in (MomentKind.PLAN, MomentKind.REFLECTION):
            self.spoke = self.spoke or bool(pieces)
        self.story.add(kind, self.run, *pieces, asked=asked)
        for item in call.calls:
            if item.agent:
                # Its sub-run says what happened. A single model has no hand-over that could fail.
                asked = self.story.handovers.get((self.run.id, item.id))
                if asked is not None and asked.outcome is Outcome.UNRECORDED:
                    self._problem(item, f"the run of {asked.to} was not recorded")
            elif is_program(item):
                self._program(item, index)
            else:
                self._call(item.name, item.arguments, item.id)

    def _acts(self, item: ToolCall) -> bool:
        """Whether a member is asked to act. Questions to a verifier or a critic appear in their replies."""
        run = next((event.run for event in self.sub_runs if event.call_id == item.id), None)
        return item.agent and (run is None or self.roles.of_agent(run, root=False) is Role.ACT)

    def _problem(self, item: ToolCall, problem: str) -> None:
        self.story.add(MomentKind.CALL, self.run, tool=item.name, arguments=item.arguments, problem=problem)

    def _program(self, item: ToolCall, index: int) -> None:
        code = str(item.arguments.get("code") or item.arguments.get("text") or "")
        inside = self._inside(item.id, index)
        returned: dict[str, list[str]] = {}
        for name, text in inside:
            returned.setdefault(name, []).append(text)
        action = self.workspace.read(code, self.story.names, returned)
        unseen = [name for name, _ in action.calls if name not in returned]
        self.programs[item.id] = ""
        if action.finishes:
            self.finishing.add(item.id)
        if action.computes and not action.why:
            self.programs[item.id] = action.program
        elif action.computes:
            self._problem(item, action.why)
        elif unseen:
            member = unseen[0] in self.members or "agent" in unseen[0].casefold()
            if len(action.calls) == 1 and action.calls[0][1] is not None and not member:
                # The only trace of the tool is the program that calls it.
                del self.programs[item.id]
                self._call(unseen[0], action.calls[0][1], item.id)
            else:
                self._problem(item, f"what {unseen[0]} returned was not recorded")

    def _result(self, result: ToolResult) -> None:
        for call_id in result.call_ids:
            program = self.programs.pop(call_id, None)
            if program is None:
                continue
            if not result.ok:
                self.workspace.failed(result.text)
            if program:
                # It comes after the calls that it made, because their results are written into it.
                finishes = call_id in self.finishing
                self.story.add(MomentKind.CALL, self.run, tool="code", arguments={"code": program}, finishes=finishes)
                self.story.add(MomentKind.RESULT, self.run, without_logs(result.text), ok=result.ok)
            return
        if result.report_of:
            return
        calls = [call for call_id in result.call_ids if (call := self.waiting.pop(call_id, None)) is not None]
        if calls or not result.call_ids:
            # A result that answers several calls at once comes after the last; the others stay unanswered.
            moment = Moment(MomentKind.RESULT, self.run.agent, (without_logs(result.text).strip(),), ok=result.ok)
            self.story.insert(moment, after=calls[-1] if calls else None)

    def _call(self, name: str, arguments: Mapping[str, JsonValue], call_id: str | None = None) -> None:
        self.story.add(MomentKind.CALL, self.run, tool=name, arguments=arguments)
        if call_id is not None:
            self.waiting[call_id] = self.story.moments[-1]

    def _inside(self, call_id: str, index: int) -> list[tuple[str, str]]:
        """What code called, with what it returned: events between the code's model call and its result."""
        found: list[tuple[str, str]] = []
        for event in self.run.events[index + 1 :]:
            if isinstance(event, ModelCall) or (isinstance(event, ToolResult) and call_id in event.call_ids):
                break
            if isinstance(event, CodeCall) and event.within in (None, call_id):
                found.append((event.call.name, event.text))
            elif isinstance(event, SubRun) and event.call_id in (None, call_id):
                found.append((event.run.agent, event.run.answer or ""))
        return found


def _pieces(call: ModelCall) -> list[str]:
    text = call.text.strip()
    # smolagents asks its models to begin with "Thought:"; that is the format's word, not the thought's.
    text = text[8:].lstrip() if text[:8].casefold() == "thought:" else text
    return [piece for piece in (call.thought.strip(), text) if piece]


def _candidate(run: AgentRun, call: ToolCall | None) -> str:
    """The answer that a verifier was given: as an argument, or named in the request."""
    given = {} if call is None else call.arguments
    candidate = next((str(given[key]) for key in _CANDIDATES if given.get(key) not in (None, "")), "")
    named = _NAMED.search(run.request) if not candidate else None
    return named.group(1).strip() if named else candidate
