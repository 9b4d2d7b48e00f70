"""The stints of one run -> a `TeamRun`: the tree of agent runs with every call, result and hand-over once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError

from coa.distill.importers.calls.exchange import Json, Piece, PieceKind, same_call
from coa.distill.importers.calls.links import results_of
from coa.distill.importers.calls.log import Exchange
from coa.distill.importers.calls.stints import HISTORY, SIGNS, Stint, news
from coa.distill.importers.content import FINISHING, as_task, as_text, at, plain, team_run
from coa.distill.importers.smolagents_steps import CODE_TOOL, results_apart
from coa.distill.importers.wrapped import unwrapped_task
from coa.distill.member_names import ERROR, guessed_in, hands_over_control, names_member, plain_name
from coa.distill.team_run import (
    AgentRun,
    ChatMessage,
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
from coa.report import plural
from coa.trajectory.types import Stop, Task, Usage

TEAM: Final = "team"
"""Name of the run that encloses the members of a pipeline, which no agent calls."""


def known_task(given: Json, question: str, identity: str | None) -> Task:
    """The task as `coa teach` wrote it down, with its tests and files; else what can be read of it."""
    try:
        return Task.model_validate({"id": identity, **given, "question": question})
    except ValidationError:
        return as_task(question, given.get("answer"), identity)


def ended(run: TeamRun, outcome: Json | None) -> TeamRun:
    """A run whose program was ended by a time limit did not fail by itself."""
    if at(outcome, "stop") != Stop.TIME:
        return run
    return run.model_copy(update={"stop": Stop.TIME, "failure": None})


@dataclass
class Builder:
    """Builds the run of one group of stints."""

    stints: list[Stint]
    file: str
    left_out: list[LeftOut] = field(default_factory=list)
    later_questions: int = field(default=0, init=False)
    """Questions that a user asked in the same conversation after the first was answered."""

    def __post_init__(self) -> None:
        self._below: dict[tuple[int, str], list[Stint]] = {}
        for stint in self.stints:
            if stint.call is not None:
                exchange, call = stint.call
                self._below.setdefault((id(exchange), call.id), []).append(stint)
        self._names = _names(self.stints)
        self._numbers = {id(stint): number for number, stint in enumerate(self.stints, start=1)}
        self._handing = _handing_tools(self.stints)
        self._summaries: dict[int, list[Exchange]] = {}
        for exchange in (exchange for stint in self.stints for exchange in stint.upkeep):
            self._summaries.setdefault(id(exchange.base), []).append(exchange)

    def build(self, task: Json | None, outcome: Json | None) -> TeamRun:
        root = self._root()
        answer = as_text(at(outcome, "answer")) or None
        error = as_text(at(outcome, "error")) or None
        if answer is not None or error is not None:  # a program that failed has no answer, whatever was said last
            root = root.model_copy(update={"answer": answer})
        given: Json = at(task, "task") or {}
        question = as_text(given.get("question")) or root.request
        if not question:
            raise TraceError("no message of a user says what the task was")
        run = self.stints[0].run or self.stints[0].first.trace
        identity = given.get("id") or (run if task is not None or run else None)
        known = known_task(given, question, None if identity is None else as_text(identity))
        self._unused()
        source = Source(format="calls", file=self.file, place=run or f"line {self.stints[0].first.began}")
        if error is None and root.answer is None:
            error = root.error
        meta = {"inferred": self._inferred()}
        return ended(team_run(known, root, source, self.left_out, error=error, meta=meta), outcome)

    def _root(self) -> AgentRun:
        """The agent that nobody called; where there are several, a run that encloses them."""
        tops: list[list[Stint]] = []
        for stint in self.stints:
            if stint.call is not None:
                continue
            if tops and tops[-1][0].thread is stint.thread:
                tops[-1].append(stint)
            else:
                tops.append([stint])
        if not tops:
            raise TraceError("its agents call each other in a circle")
        self.later_questions = sum(len(top) - 1 for top in tops)
        if len(tops) == 1:
            return self._agent_run(tops[0])
        runs = [self._agent_run(top) for top in tops]
        events = tuple(SubRun(time=top[0].first.time, run=run) for top, run in zip(tops, runs, strict=True))
        answer = next((run.answer for run in reversed(runs) if run.answer is not None), None)
        error = runs[-1].error if answer is None else None
        return AgentRun(
            id=TEAM, agent=TEAM, request=runs[0].request, events=events, answer=answer, error=error,
            tools=tuple(dict.fromkeys(run.agent for run in runs)),
        )  # fmt: skip

    def _agent_run(self, stints: list[Stint]) -> AgentRun:
        """One agent's run: one stint, or several of one conversation that a user kept going."""
        first, events = stints[0], list[Event]()
        exchanges = [exchange for stint in stints for exchange in stint.exchanges]
        back = {identity for stint in stints for identity in stint.back}
        request = self._request(first)
        tools: dict[str, Any] = {}
        for exchange in exchanges:
            tools |= exchange.asked.tools
        pending: list[str] = []
        for index, exchange in enumerate(exchanges):
            following = exchanges[index + 1] if index + 1 < len(exchanges) else None
            heard = news(exchange)
            if index:
                events += self._heard(exchange, heard, exchanges[index - 1])
            for failed in exchange.failed:
                events.append(self._model_call(failed, _messages(heard, failed), back))
                heard = []
            events.append(self._model_call(exchange, _messages(heard, exchange), back))
            events += self._after(exchange, following, back)
            pending = [call.id for call in exchange.calls if call.id not in back]
        last = stints[-1]
        answer = last.answer()
        if answer is None and pending:
            # Control went on for good: the answer is that of the last agent that had it.
            handed = [stint for call in pending for stint in self._below.get((id(last.last), call), [])]
            transferred = [stint for stint in handed if stint.evidence == HISTORY or hands_over_control(stint.call[1])]  # type: ignore[index]
            runs = [event.run for event in events if isinstance(event, SubRun)]
            if transferred and runs:
                answer = runs[-1].answer
        meta = {"tool_definitions": plain(tools)} if tools else {}
        return AgentRun(
            id=self._id(first), agent=self._names[id(first)], tools=tuple(tools), system=first.first.asked.system,
            request=request, events=tuple(events), answer=answer, error=last.last.error, meta=meta,
        )  # fmt: skip

    def _id(self, stint: Stint) -> str:
        return str(self._numbers[id(stint)])

    def _request(self, stint: Stint) -> str:
        """Its own first message may be wrapped; where it holds the call's argument, that is what was asked."""
        asked = stint.request()
        if stint.call is None:
            return asked
        call = stint.call[1]
        given = [v for key, v in call.arguments.items() if isinstance(v, str) and v and not names_member(key)]
        transferred = hands_over_control(call)
        inside = [value for value in given if transferred or value in asked]
        if not inside and transferred:
            # It took over the conversation, so it works on what the user asked for.
            asked = unwrapped_task(next((p.text for p in stint.first.history() if p.kind is PieceKind.USER), asked))
        return max(inside, key=len) if inside else asked

    def _heard(self, exchange: Exchange, heard: list[Piece], before: Exchange) -> list[Event]:
        """Words of users and of the system. Results follow their calls; what other agents said is in their runs."""
        roles = {PieceKind.USER: "user", PieceKind.SYSTEM: "system"}
        below = [stint for call in before.calls for stint in self._below.get((id(before), call.id), [])]
        return [
            Note(time=exchange.time, role=roles[piece.kind], text=piece.text)
            for piece in heard
            if piece.kind in roles
            and piece.speaker not in self._names.values()
            and not any(stint.name and stint.name in piece.text for stint in below)
        ]

    def _model_call(self, exchange: Exchange, messages: tuple[ChatMessage, ...], back: set[str]) -> ModelCall:
        reply, meta = exchange.reply, dict[str, Any]()
        if reply is None:
            return ModelCall(
                time=exchange.time, messages=messages, rewritten=exchange.rewritten, model=exchange.model,
                usage=exchange.usage, error=exchange.error,
            )  # fmt: skip
        if reply.sampled:
            meta["sampled"] = plain(reply.sampled)
        for number in range(len(exchange.choices)):
            if number != exchange.used:
                reason = "the conversation did not go on from it"
                what = f"choice {number + 1} of {len(exchange.choices)}"
                self.left_out.append(LeftOut(what=what, reason=reason, place=exchange.id))
        returned = [call for call in reply.calls if call.id in back]
        purpose = Purpose.ANSWER if reply.answer is not None or returned else Purpose.ACT
        calls = tuple(self._marked(call, exchange) for call in reply.calls if call.id not in back)
        return ModelCall(
            time=exchange.time, purpose=purpose, messages=messages, rewritten=exchange.rewritten,
            thought=reply.thought, text=reply.text, calls=calls, model=exchange.model, usage=exchange.usage,
            error=exchange.error, meta=meta,
        )  # fmt: skip

    def _marked(self, call: ToolCall, exchange: Exchange) -> ToolCall:
        started = (id(exchange), call.id) in self._below
        return call.model_copy(update={"agent": True}) if started or self._hands_over(call, exchange) else call

    def _hands_over(self, call: ToolCall, exchange: Exchange) -> bool:
        """Whether a call that started nobody was meant to: by its tool, or by a name like those that did."""
        if call.name in self._handing:
            return True
        if not exchange.asked.tools or call.name in exchange.asked.tools:
            return False
        if self._handing and set(exchange.asked.tools) <= FINISHING | set(self._handing):
            return True  # an agent that can only call members called one that does not exist
        shape = _shape(call, guessed_in(call))
        return bool(shape) and shape in self._handing.values()

    def _after(self, exchange: Exchange, following: Exchange | None, back: set[str]) -> list[Event]:
        """The runs that its calls started and the results that came back, call by call."""
        results = results_of(exchange, following)
        for summary in self._summaries.get(id(exchange), ()):
            # A context that was rewritten afterwards may not hold the results any more.
            results = {**results_of(exchange, summary), **results}
        events: list[Event] = []
        merged = len({id(value) for value in results.values()}) < len(results)
        for call in exchange.calls:
            if call.id in back:
                continue
            below = self._below.get((id(exchange), call.id), [])
            runs = [self._agent_run([stint]) for stint in below]
            result = results.get(call.id) or self._transferred(below, call)
            if len(runs) == 1 and result is not None and not merged:
                runs = [_returned_directly(runs[0], *result)]
            events += [
                SubRun(time=stint.first.time, call_id=call.id, run=run, meta={"linked_by": stint.evidence})
                for stint, run in zip(below, runs, strict=True)
            ]
            if result is None or merged:
                continue
            text, ok = result
            ok = ok and not (self._fails(text) if not runs else False)
            if not runs and self._hands_over(call, exchange):
                ok = False
            events.append(ToolResult(call_ids=(call.id,), text=text, ok=ok, report_of=tuple(run.id for run in runs)))
        if merged:
            text, ok = next(iter(results.values()))
            reports = tuple(event.run.id for event in events if isinstance(event, SubRun))
            ids = tuple(call.id for call in exchange.calls if call.id in results)
            whole = ToolResult(call_ids=ids, text=text, ok=ok and not self._fails(text), report_of=reports)
            events += results_apart(whole)
        return events

    def _transferred(self, below: list[Stint], call: ToolCall) -> tuple[str, bool] | None:
        """The result of a hand-over of control stands in the request of the agent that took it."""
        for stint in below:
            for piece in stint.first.asked.pieces:
                if piece.kind is PieceKind.RESULT and piece.id == call.id:
                    return piece.text, piece.ok
        return None

    @staticmethod
    def _fails(text: str) -> bool:
        return ERROR.match(text) is not None

    def _unused(self) -> None:
        """Replies that no conversation goes on from, and upkeep. What they cost still counts."""
        for stint in self.stints:
            for exchange in stint.upkeep:
                reason = "it asks for a title or a summary of the conversation"
                self.left_out.append(left_out_call(exchange, f"model call {exchange.id}", reason))
        for thread in dict.fromkeys(stint.thread for stint in self.stints):
            for exchange in thread.unused:
                for each in (exchange, *exchange.failed):
                    reason = "the conversation did not go on from its reply"
                    what = f"model call {each.id}"
                    self.left_out.append(left_out_call(each, what, reason))

    def _inferred(self) -> dict[str, Any]:
        """How sure the run is: what was given, what was inferred, and what could have been decided otherwise."""
        agents = {self._names[id(stint)]: stint.given for stint in self.stints}
        links = [stint for stint in self.stints if stint.evidence]
        weak = [stint for stint in links if stint.evidence in SIGNS]
        doubtful = [stint for stint in links if stint.rivals]
        notes = [f"{self._names[id(stint)]} was linked by one sign alone: {SIGNS[stint.evidence]}" for stint in weak]
        for stint in doubtful:
            notes.append(
                f"{self._names[id(stint)]}: {stint.rivals + 1} candidates for what started it; the first was taken"
            )
        unclear = [exchange for stint in self.stints for exchange in stint.exchanges if exchange.ambiguous]
        for exchange in unclear:
            notes.append(
                f"call {exchange.id} continues one of {exchange.ambiguous + 1} equal histories; the first was taken"
            )
        if self.later_questions:
            notes.append(
                f"{plural(self.later_questions, 'more question')} of the user in the same conversation: all of it is "
                "one run with the first question and the last answer; start a new history for each task"
            )
        return {
            "agents": sum(not given for given in agents.values()),
            "of_agents": len(agents),
            "links": sum(stint.evidence != HISTORY for stint in links),
            "of_links": len(links),
            "weak": len(weak),
            "ambiguous": len(doubtful) + len(unclear) + self.later_questions,
            "notes": notes,
        }


def _returned_directly(run: AgentRun, report: str, ok: bool) -> AgentRun:
    """A member may end with its tool's result instead of words of its own (`return_direct`, `stop_on_first_tool`).

    No request of the member holds that result. It is what its caller got.
    """
    last = run.events[-1] if run.events else None
    if run.answer is not None or not isinstance(last, ModelCall) or len(last.calls) != 1 or last.calls[0].agent:
        return run
    result = ToolResult(call_ids=(last.calls[0].id,), text=report, ok=ok and not Builder._fails(report))
    return run.model_copy(update={"events": (*run.events, result), "answer": report})


def left_out_call(exchange: Exchange, what: str, reason: str) -> LeftOut:
    usage = exchange.usage or Usage(model_calls=1)
    return LeftOut(what=what, reason=reason, place=exchange.id, usage=usage)


def _messages(heard: Iterable[Piece], exchange: Exchange) -> tuple[ChatMessage, ...]:
    found = []
    own = exchange.own.reply if exchange.own is not None and not exchange.rewritten else None
    for piece in [*(own.pieces if own is not None and heard else ()), *heard]:
        text = same_call(piece.call) if piece.call is not None else piece.text
        role = "assistant" if piece.kind is PieceKind.CALL else piece.kind.value
        found.append(ChatMessage(role=role, text=text))
    return tuple(found)


def _names(stints: list[Stint]) -> dict[int, str]:
    """The name of each stint's agent. Where no prompt names it: after the tool that calls it, or by number."""
    found: dict[int, str] = {}
    by_thread: dict[int, str] = {}
    numbers: dict[Any, str] = {}
    for stint in stints:
        name = stint.name or by_thread.get(id(stint.thread), "")
        if not name and stint.call is not None:
            call = stint.call[1]
            name = guessed_in(call) if call.name != CODE_TOOL else ""
        if not name:
            key = stint.first.asked.system or id(stint.thread)
            name = numbers.setdefault(key, f"agent_{len(numbers) + 1}")
        found[id(stint)] = by_thread.setdefault(id(stint.thread), name)
    return found


def _handing_tools(stints: list[Stint]) -> dict[str, str]:
    """Tools that started members of the team, with the shape of their names: `ask_*` for `ask_researcher`."""
    found: dict[str, str] = {}
    for stint in stints:
        if stint.call is not None:
            call = stint.call[1]
            found[call.name] = _shape(call, stint.name) or _shape(call, guessed_in(call))
    return found


def _shape(call: ToolCall, member: str) -> str:
    """Empty where the tool's name does not contain the member's, or is that name."""
    tool, name = plain_name(call.name), plain_name(member)
    return tool.replace(name, "*") if name and name in tool and name != tool else ""
