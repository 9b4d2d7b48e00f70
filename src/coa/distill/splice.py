"""One team run -> one story: every thought, call and result once, in order, as moments that know no profile.

The tree of runs is walked depth-first, so the run of a sub-agent takes the place of the call that started it. What
orchestration wrote or repeated is left out: wrapper prompts, reports of sub-agents as their caller saw them, copied
context, notes, what models wrote inside tools, and hand-overs that failed, because a single model has none. What is
left out is a moment too, with the reason, so that `explanation.py` can show it. `compose` then decides which step of a
profile a moment becomes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from pydantic import JsonValue

from coa.distill.code_actions import Workspace, is_program, without_logs
from coa.distill.handovers import Handover, HandoverOutcome, handovers_of
from coa.distill.member_names import request_of
from coa.distill.roles import Role, Roles
from coa.distill.team_run import (
    AgentRun,
    CodeCall,
    EvaluatorVerdict,
    Event,
    ModelCall,
    Note,
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
    LEFT_OUT = "left_out"
    """It becomes no step, and `why` says why."""


Origin = tuple[str, int | None]
"""What a moment was made of: the id of an agent's run and the index of the event in it; None for the run itself, its
request or its answer."""


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
    lent: bool = False
    """A thought that its agent did not write: what it asked of another, or what another reported to it."""
    again: bool = False
    """Another call of the same reply: the thought before the first is the thought of them all."""
    problem: str = ""
    """Why no profile can express this."""
    why: str = ""
    """Why it is what it is, where that is not plain from its kind."""
    origin: Origin = field(default=("", None), compare=False)

    @property
    def text(self) -> str:
        return "\n\n".join(self.texts)


_CANDIDATES: Final = ("answer", "candidate", "candidate_answer", "proposed_answer", "suggested_answer", "draft")
_NAMED: Final = re.compile(r"\banswer(?:\s+is)?\s*[:=]\s*[\"']?([^\n\"']{1,200}?)[\"']?\s*(?:$|\n)", re.IGNORECASE)
_REQUESTS: Final = ("task", "request", "question", "query", "input", "text", "instruction", "message", "prompt")
NOT_RECORDED: Final = "was not recorded"
"""How the problem of a member ends whose run the trace does not have."""
_SENTENCE: Final = 12
"""Characters from which an argument of any name is taken for a request, and not for a name."""


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

    answers: list[str] = field(default_factory=list)
    """Answers of the agents from the root to the one that is being read."""
    origin: Origin = ("", None)
    """Of the moments that are being added."""

    def add_run(self, run: AgentRun, *, root: bool = False, call: ToolCall | None = None) -> None:
        role = self.roles.of_agent(run, root=root)
        self.origin = (run.id, None)
        if role is Role.DROP:
            decided = self.roles.decided[run.agent].by
            texts = [piece for made in run.model_calls for piece in _pieces(made)]
            self.leave(
                run, *texts, why=f"what {run.agent} writes is for the team's housekeeping (role drop by {decided})"
            )
            return
        self.answers.append((run.answer or "").strip())
        if role is Role.VERIFY:
            self._verify(run, call)
        else:
            self._read(run, role, root=root, call=call)
        self.answers.pop()

    def _read(self, run: AgentRun, role: Role, *, root: bool, call: ToolCall | None) -> None:
        inside = _AgentEvents(self, run, role)
        first = next((event for event in run.events if isinstance(event, ModelCall) and not event.copied), None)
        silent = first is not None and first.calls and not _pieces(first)
        if not root and role is Role.ACT and silent and not self.thinking and (request := _request(call, run)):
            why = f"{run.agent} wrote no thought; what it was asked stands for one"
            self.add(MomentKind.THOUGHT, run, request, lent=True, why=why)
        for index, event in enumerate(run.events):
            inside.event(event, index)
        self.origin = (run.id, None)
        if root and run.answer is not None:
            self.add(MomentKind.ANSWER, run, run.answer)
        elif role in (Role.PLAN, Role.REFLECT) and not inside.spoke:
            # Only its report was recorded.
            self.add(_TEXTS[role], run, run.answer or "", why=f"only the report of {run.agent} was recorded")

    def _verify(self, run: AgentRun, call: ToolCall | None) -> None:
        """Evidence that the verifier gathers comes first: between a suggestion and its check nobody acts."""
        inside = _AgentEvents(self, run, Role.ACT)
        last = max((i for i, e in enumerate(run.events) if isinstance(e, ModelCall) and not e.copied), default=-1)
        for index, event in enumerate(run.events):
            if index != last:
                inside.event(event, index)
        final = run.events[last] if last >= 0 else None
        pieces = _pieces(final) if isinstance(final, ModelCall) else []
        verdict = (run.answer or "").strip()
        if verdict and all(verdict != piece for piece in pieces):
            pieces.append(verdict)
        self.origin = (run.id, last if last >= 0 else None)
        self.add(
            MomentKind.CANDIDATE, run, _candidate(run, call), why=f"the answer that {run.agent} was given to check"
        )
        self.add(MomentKind.CHECK, run, *pieces, why=f"{run.agent} verifies")

    def _latest(self) -> Moment:
        """The latest moment that is not left out."""
        kept = (moment for moment in reversed(self.moments) if moment.kind is not MomentKind.LEFT_OUT)
        return next(kept, Moment(MomentKind.LEFT_OUT, ""))

    @property
    def thinking(self) -> bool:
        """Whether the latest step is a thought."""
        return self._latest().kind is MomentKind.THOUGHT

    def add(self, kind: MomentKind, run: AgentRun, *texts: str, **rest: object) -> None:
        kept = tuple(text.strip() for text in texts if text and text.strip())
        if kept and kind is MomentKind.THOUGHT and self.thinking and kept == self._latest().texts:
            self.leave(run, *kept, why="it repeats the thought before it")
        elif kept or kind in (MomentKind.CALL, MomentKind.RESULT, MomentKind.CANDIDATE, MomentKind.CHECK):
            made: dict[str, object] = {"origin": self.origin, **rest}
            self.moments.append(Moment(kind, run.agent, kept, **made))  # type: ignore[arg-type]

    def leave(self, run: AgentRun, *texts: str, why: str, tool: str = "") -> None:
        """Something that becomes no step."""
        kept = tuple(text.strip() for text in texts if text and text.strip())
        if kept or tool:
            left = Moment(MomentKind.LEFT_OUT, run.agent, kept, tool=tool, why=why, origin=self.origin)
            self.moments.append(left)

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
    written_at: dict[str, int] = field(default_factory=dict)
    """Indices of the events that wrote these programs."""
    finishing: set[str] = field(default_factory=set)
    failed: bool = False
    """Whether the latest reply did nothing but ask members in vain."""
    reports: list[tuple[str, str]] = field(default_factory=list)
    """Who reported since the agent last wrote, and what."""

    def __post_init__(self) -> None:
        self.roles = self.story.roles
        self.sub_runs = [event for event in self.run.events if isinstance(event, SubRun)]
        self.members = {event.run.agent for event in self.sub_runs}

    def event(self, event: Event, index: int) -> None:
        self.story.origin = (self.run.id, index)
        if event.copied:
            self.story.leave(self.run, getattr(event, "text", ""), why="context repeated from elsewhere")
            return
        match event:
            case ModelCall():
                self._model_call(event, index)
            case ToolResult():
                self._result(event)
            case CodeCall() if event.call.agent:
                self._handover(event.call)
            case CodeCall():
                why = "the code called it" if event.within else ""
                self._call(event.call.name, event.call.arguments, why=why)
                self.story.add(MomentKind.RESULT, self.run, event.text, ok=event.ok)
            case SubRun():
                self._sub_run(event)
            case EvaluatorVerdict():
                by = f"{event.judge or 'an evaluator'} judges what comes before it"
                self.story.add(MomentKind.CHECK, self.run, event.text, score=event.score, label=event.label, why=by)
            case Note():
                self.story.leave(self.run, event.text, why=f"no agent wrote it: a message of the {event.role}")

    def _sub_run(self, event: SubRun) -> None:
        calls = (call for e in self.run.events if isinstance(e, ModelCall) for call in e.calls)
        call = next((call for call in calls if call.id == event.call_id), None)
        self.story.add_run(event.run, call=call)
        report = (event.run.answer or "").strip()
        if report and self.roles.of_agent(event.run, root=False) is Role.ACT:
            self.reports.append((event.run.agent, report))

    def _model_call(self, call: ModelCall, index: int) -> None:
        reports, self.reports = self.reports, []
        after_failure, self.failed = self.failed, False
        if call.purpose is Purpose.TOOL:
            self.story.leave(self.run, *_pieces(call), why="a model inside a tool wrote it")
            return
        if call.error and not call.calls:
            self.story.leave(self.run, *_pieces(call), why=f"it could not be read as an action: {call.error[:200]}")
            return
        kind = _TEXTS[self.roles.of_call(call, self.role, self.run)]
        pieces = _pieces(call)
        only_asks = bool(call.calls) and all(item.agent for item in call.calls)
        if kind is MomentKind.THOUGHT:
            pieces = self._without_answers(pieces)
        if kind is MomentKind.THOUGHT and after_failure and only_asks:
            # It speaks of a failure that the trajectory does not show, and the thought before says what it wants.
            self.story.leave(self.run, *pieces, why="it comments on a hand-over that failed, and asks again")
            spoke = True
        elif kind is MomentKind.THOUGHT and not pieces:
            spoke = self._lend(call, reports)
        else:
            self.story.add(kind, self.run, *pieces)
            spoke = bool(pieces)
            self.spoke = self.spoke or (spoke and kind is not MomentKind.THOUGHT)
        for number, item in enumerate(call.calls):
            if item.agent:
                self._handover(item)
            elif is_program(item):
                self._program(item, index)
            else:
                self._call(item.name, item.arguments, item.id, again=any(not one.agent for one in call.calls[:number]))
        self.failed = only_asks and spoke and all(self._in_vain(item) for item in call.calls)

    def _without_answers(self, pieces: list[str]) -> list[str]:
        """The answer becomes a separate step, and a report is what its caller deals with."""
        kept = []
        for piece in pieces:
            if piece not in self.story.answers:
                kept.append(piece)
            elif piece == self.story.answers[0]:
                self.story.leave(self.run, piece, why="it is the answer, which is a step of its own")
            else:
                self.story.leave(self.run, piece, why="it is the report, which the caller deals with")
        return kept

    def _lend(self, call: ModelCall, reports: list[tuple[str, str]]) -> bool:
        """A thought for a silent agent: what it asks of another shows what it wants, a report what it knows by now."""
        asked = next((request for item in call.calls if self._acts(item) and (request := _request(item))), "")
        reported = [] if asked else [(name, text) for name, text in reports if text not in self.story.answers]
        if asked:
            why = f"{self.run.agent} wrote no thought; what it asks stands for one"
        else:
            names = " and ".join(dict.fromkeys(name for name, _ in reported))
            why = f"{self.run.agent} wrote no thought; what {names} reported stands for one"
        texts = [asked] if asked else [text for _, text in reported]
        self.story.add(MomentKind.THOUGHT, self.run, *texts, lent=True, why=why)
        return bool(texts)

    def _handover(self, item: ToolCall) -> None:
        """Its sub-run says what happened."""
        asked = self.story.handovers.get((self.run.id, item.id))
        if asked is None or asked.outcome is HandoverOutcome.DONE:
            who = asked.to if asked else item.name
            self.story.leave(
                self.run, _request(item), tool=item.name, why=f"a hand-over: the run of {who} takes its place"
            )
        elif asked.outcome is HandoverOutcome.FAILED:
            why = f"a hand-over to {asked.to} that failed; a single model has none: {_first_line(asked.error)}"
            self.story.leave(self.run, _request(item), tool=item.name, why=why)
        elif self.roles.drops(asked.to, item.name):
            self.story.leave(self.run, _request(item), tool=item.name, why=f"your roles file drops {asked.to}")
        elif asked.outcome is HandoverOutcome.RETURNED:
            self.story.leave(self.run, _request(item), tool=item.name, why=f"control goes back to {asked.to}")
        else:
            self._problem(item, f"the run of {asked.to} {NOT_RECORDED}")

    def _in_vain(self, item: ToolCall) -> bool:
        asked = self.story.handovers.get((self.run.id, item.id))
        worked = any(run.model_calls for sub in self.sub_runs if sub.call_id == item.id for run in sub.run.walk())
        return asked is not None and asked.outcome is HandoverOutcome.FAILED and not worked

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
        self.programs[item.id], self.written_at[item.id] = "", index
        if action.finishes:
            self.finishing.add(item.id)
        if action.computes and not action.why:
            self.programs[item.id] = action.program
        elif action.computes:
            self._problem(item, action.why)
        elif not unseen:
            self.story.leave(
                self.run, code, tool=item.name, why="a program that only calls the team; its calls are steps"
            )
        else:
            member = unseen[0] in self.members or "agent" in unseen[0].casefold()
            if len(action.calls) == 1 and action.calls[0][1] is not None and not member:
                # The only trace of the tool is the program that calls it.
                del self.programs[item.id]
                self._call(unseen[0], action.calls[0][1], item.id, why="the only trace of it is the code that calls it")
            elif member and (error := self._error_of(item.id)):
                why = f"a hand-over to {unseen[0]} that failed; a single model has none: {_first_line(error)}"
                self.story.leave(self.run, code, tool=item.name, why=why)
            else:
                lost = NOT_RECORDED if member else "is not in the trace"
                self._problem(item, f"what {unseen[0]} returned {lost}")

    def _error_of(self, call_id: str) -> str:
        results = (event for event in self.run.events if isinstance(event, ToolResult) and call_id in event.call_ids)
        return next((event.text for event in results if not event.ok), "")

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
                why = "the program with what its calls returned in their place, so that it runs alone"
                self.story.add(
                    MomentKind.CALL, self.run, tool="code", arguments={"code": program}, finishes=finishes, why=why,
                    origin=(self.run.id, self.written_at[call_id]),
                )  # fmt: skip
                self.story.add(MomentKind.RESULT, self.run, without_logs(result.text), ok=result.ok)
            else:
                self.story.leave(self.run, result.text, why="the results of its calls are steps")
            return
        if result.report_of:
            self.story.leave(self.run, result.text, why="the report repeats what the run before it found")
            return
        calls = [call for call_id in result.call_ids if (call := self.waiting.pop(call_id, None)) is not None]
        if calls or not result.call_ids:
            # A result that answers several calls at once comes after the last; the others stay unanswered.
            texts = (without_logs(result.text).strip(),)
            moment = Moment(MomentKind.RESULT, self.run.agent, texts, ok=result.ok, origin=self.story.origin)
            self.story.insert(moment, after=calls[-1] if calls else None)
        else:
            self.story.leave(self.run, result.text, why="the call that it answers is not in the trajectory")

    def _call(
        self, name: str, arguments: Mapping[str, JsonValue], call_id: str | None = None, *, again: bool = False,
        why: str = "",
    ) -> None:  # fmt: skip
        self.story.add(MomentKind.CALL, self.run, tool=name, arguments=arguments, again=again, why=why)
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


def _request(call: ToolCall | None, run: AgentRun | None = None) -> str:
    """What a member is asked: by the arguments of the call, otherwise by what its run was given."""
    given = {} if call is None else call.arguments
    named = next((str(given[key]) for key in _REQUESTS if given.get(key)), "")
    longest = request_of(call) if call is not None else ""
    return named or (longest if len(longest) >= _SENTENCE else "") or (run.request if run is not None else "")


def _first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "")[:200]


def _candidate(run: AgentRun, call: ToolCall | None) -> str:
    """The answer that a verifier was given: as an argument, or named in the request."""
    given = {} if call is None else call.arguments
    candidate = next((str(given[key]) for key in _CANDIDATES if given.get(key) not in (None, "")), "")
    named = _NAMED.search(run.request) if not candidate else None
    return named.group(1).strip() if named else candidate
