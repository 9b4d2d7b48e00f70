"""From the spans of one trace to team runs.

A trace is a tree of spans, each with a start time and a parent. A span that is an agent becomes an `AgentRun`; the
models and tools below it become the events of that run, in the order in which they began; a span of any other kind (a
graph's node, a chain) is only a path to what is below it. Only the usage of model spans is counted, because agent spans
may repeat it. A tool's result comes from the tool's span or, if there is none, from the next model call that read it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import Final

from coa.distill.importers.content import FINISHING, handed_in, last_answer, split_code, team_run
from coa.distill.importers.messages import Said
from coa.distill.importers.smolagents_steps import CODE_TOOL
from coa.distill.importers.spans.genai import read_genai
from coa.distill.importers.spans.hidden_agents import hidden_agent
from coa.distill.importers.spans.langgraph import with_graph_agents
from coa.distill.importers.spans.observed import LANGFUSE, MLFLOW, read_langfuse, read_mlflow
from coa.distill.importers.spans.openinference import KIND, read_openinference
from coa.distill.importers.spans.span import SpanReading, SpanRole, TraceSpan
from coa.distill.importers.wrapped import unwrapped_task
from coa.distill.member_names import plain_name
from coa.distill.team_run import (
    AgentRun,
    ChatMessage,
    CodeCall,
    EvaluatorVerdict,
    Event,
    LeftOut,
    ModelCall,
    Purpose,
    Source,
    SubRun,
    TeamRun,
    ToolCall,
    ToolResult,
)
from coa.errors import TraceError
from coa.trajectory.types import Task, Usage

OTEL: Final = "otel"
"""Spans by the GenAI conventions of OpenTelemetry; a run's source names those of OpenInference `openinference`."""
MOST_DEEP: Final = 200
"""Depth of nested spans. Graph frameworks wrap each call in a dozen."""
_CLASSES: Final = ("CodeAgent", "ToolCallingAgent")
"""What smolagents calls an agent without a name."""
_STEP: Final = re.compile(r"Step \d+\Z")


def read_span(span: TraceSpan) -> SpanReading:
    if span.reading is None and KIND in span.attributes:
        span.reading = read_openinference(span)
    elif span.reading is None and MLFLOW in span.attributes:
        span.reading = read_mlflow(span)
    elif span.reading is None and LANGFUSE in span.attributes:
        span.reading = read_langfuse(span)
    elif span.reading is None:
        speaks_genai = any(key.startswith("gen_ai.") for key in span.attributes)
        span.reading = read_genai(span) if speaks_genai else SpanReading(name=span.name)
    return span.reading


def runs_of(spans: Iterable[TraceSpan], file: str = "", kind: str = "") -> Iterator[TeamRun]:
    """The team runs of one trace, usually one. `kind` is their format; without it, it is the dialect of the spans."""
    known = {span.id: span for span in spans}
    ordered = sorted(known.values(), key=lambda span: span.order)
    for span in ordered:
        span.children = []
    lost, roots = list[TraceSpan](), list[TraceSpan]()
    for span in ordered:
        parent = known.get(span.parent) if span.parent else None
        if parent is not None and parent is not span:
            parent.children.append(span)
        else:
            (roots if span.parent is None else lost).append(span)
    with_graph_agents(ordered, known, read_span)
    if not roots:
        # The trace began in another service, whose spans are elsewhere.
        roots, lost = lost, []
    found = [top for root in roots for top in _tops(root)]
    if not found and all(span.attributes.get("gen_ai.operation.name") == "create_agent" for span in ordered):
        return  # an agent was made, and did not work yet
    if not found:
        raise TraceError("no span of the trace is an agent or a model call that says what was asked")
    for index, top in enumerate(found):
        yield _team_run(top, file, lost if index == 0 else [], kind)


def _tops(root: TraceSpan) -> list[TraceSpan]:
    """The span to take as a whole team: the root, unless there is nothing but one agent in it."""
    if read_span(root).role is SpanRole.AGENT:
        return [root]
    agents, bare_models = _outermost_agents(root)
    if not agents and not bare_models:
        return []
    return [agents[0]] if len(agents) == 1 and not bare_models else [root]


def _outermost_agents(top: TraceSpan) -> tuple[list[TraceSpan], bool]:
    """Agents below a span that no other agent encloses, and whether a model is called outside of any agent."""
    agents, bare_models, waiting = list[TraceSpan](), False, list(top.children)
    if read_span(top).role is SpanRole.MODEL:
        bare_models = True
    while waiting:
        span = waiting.pop(0)
        role = read_span(span).role
        if role is SpanRole.AGENT:
            agents.append(span)
        else:
            bare_models = bare_models or role is SpanRole.MODEL
            waiting += span.children
    return agents, bare_models


def _team_run(top: TraceSpan, file: str, lost: list[TraceSpan], kind: str) -> TeamRun:
    left_out: list[LeftOut] = []
    root = _Run(top, left_out, 0).built()
    # A workflow around the agents need not repeat what it was asked.
    question = next((run.request for run in root.walk() if run.request), "")
    if not question:
        raise TraceError("the spans carry no content (messages are opt-in in most instrumentations)")
    for span in lost:
        reading = read_span(span)
        usage = reading.usage if reading.role is SpanRole.MODEL else None
        left_out.append(LeftOut(what=f"span {span.name}", reason="its parent is missing", place=span.id, usage=usage))
    if not any(run.model_calls for run in root.walk()) and not any(item.usage for item in left_out):
        reason = "no span records any; custom model classes may not be instrumented"
        left_out.append(LeftOut(what="all model calls", reason=reason))
    dialect = kind or ("openinference" if KIND in top.attributes else OTEL)
    task = Task(id=f"{top.trace}-{top.id}", question=question)
    return team_run(task, root, Source(format=dialect, file=file, place=top.trace), left_out, error=root.error)


def _same_call(outer: SpanReading, inner: SpanReading) -> bool:
    """Whether a model's span inside of another is the same call, recorded by two instrumentations."""
    if inner.role is not SpanRole.MODEL:
        return False
    replies = [[(message.text, message.calls) for message in reading.said] for reading in (outer, inner)]
    return not all(replies) or replies[0] == replies[1]


def _same_tool(outer: SpanReading, inner: SpanReading) -> bool:
    """Whether a tool's span inside of another is the same call, recorded by two instrumentations."""
    known = inner.arguments in ({}, outer.arguments) and inner.output in (None, outer.output)
    return inner.role is SpanRole.TOOL and inner.name == outer.name and known and outer.call_id in (None, inner.call_id)


def _in_order(events: list[Event]) -> tuple[Event, ...]:
    """The results of calls made at once in the order of the calls, not in that in which their threads began."""
    calls = [call.id for event in events if isinstance(event, ModelCall) for call in event.calls]
    place = {identity: index for index, identity in enumerate(calls)}

    def order(event: Event) -> int:
        return min((place.get(i, 0) for i in event.call_ids), default=0) if isinstance(event, ToolResult) else 0

    found: list[Event] = []
    for _, group in groupby(events, lambda event: isinstance(event, ToolResult)):
        found += sorted(group, key=order)
    return tuple(found)


class _Run:
    """One agent's run while its spans are read."""

    def __init__(self, span: TraceSpan, left_out: list[LeftOut], depth: int) -> None:
        self.span, self.reading, self.left_out, self._depth = span, read_span(span), left_out, depth
        self.events: list[Event] = []
        self.system = self.reading.system
        self.request = unwrapped_task(self.reading.request)
        self.handed_in: str | None = None
        self.code: str | None = None
        """Id of the code block that is being run, in a step of smolagents."""
        self._stepping = False
        self._read: set[ChatMessage] = set()
        self._longest = 0
        self._waiting: dict[str, ToolCall] = {}
        """Calls without a result so far."""
        self._answered: set[str] = set()
        self._recovered: set[str] = set()
        """Calls that only the history of a later call shows; their results come from there too."""
        self._calls = 0
        self._definitions = dict(self.reading.definitions)

    def built(self) -> AgentRun:
        reading = self.reading
        for child in self.span.children:
            self._visit(child, Purpose.ACT, self._depth + 1)
        if reading.role is SpanRole.MODEL or (reading.said and not self.events and KIND in self.span.attributes):
            # AG2's instrumentation has no spans of models; what an agent returned is what its model wrote.
            self._model(self.span, reading, Purpose.ACT)
        self.events += reading.verdicts
        answer = self.handed_in if self.handed_in is not None else reading.output
        if answer is None:
            answer = last_answer(self.events)
            if not any(
                isinstance(event, ModelCall) for event in self.events
            ):  # a workflow ends with what its last agent says
                answer = next((event.run.answer for event in reversed(self.events) if isinstance(event, SubRun)), None)
        kind = reading.name if reading.name in _CLASSES else ""
        definitions = {name: schema for name, schema in self._definitions.items() if name not in FINISHING}
        tools = (name for name in reading.tools or definitions if name not in FINISHING)
        return AgentRun(
            id=self.span.id, agent=reading.name or "agent", type=kind, description=reading.description,
            tools=tuple(tools), system=self.system, request=self.request, events=_in_order(self.events), answer=answer,
            error=reading.error, meta={"tool_definitions": definitions} if definitions else {},
        )  # fmt: skip

    def _visit(self, span: TraceSpan, purpose: Purpose, depth: int) -> None:
        if depth > MOST_DEEP:
            raise TraceError(f"spans are nested more than {MOST_DEEP} deep")
        reading = read_span(span)
        match reading.role:
            case SpanRole.AGENT if reading.name == self.reading.name and self._only_agent(span):
                # Two instrumentations of one agent: the inner span says more.
                self.request = self.request or unwrapped_task(reading.request)
                self.system = self.system or reading.system
                self._all(span, purpose, depth)
            case SpanRole.AGENT:
                run = _Run(span, self.left_out, depth).built()
                self.events.append(SubRun(time=span.start, call_id=self._calling(run.agent), run=run))
            case SpanRole.MODEL:
                same = [child for child in span.children if _same_call(reading, read_span(child))]
                fullest = next((other for other in map(read_span, same) if other.said and not reading.said), reading)
                self._model(span, fullest, self._purpose(span, purpose))
                for child in span.children:
                    if child not in same:
                        self._visit(child, Purpose.TOOL, depth + 1)
            case SpanRole.TOOL:
                self._tool(span, reading, depth)
            case SpanRole.PLAN:
                self._all(span, Purpose.PLAN, depth)
            case SpanRole.JUDGE:
                self._all(span, Purpose.TOOL, depth)
                shown = reading.verdicts or (EvaluatorVerdict(judge=reading.name, text=reading.output or ""),)
                self.events += [verdict.model_copy(update={"time": span.start}) for verdict in shown]
            case _ if _STEP.match(span.name):
                self._step(span, reading, depth)
            case _:
                self._all(span, purpose, depth)
                for identity, text, ok in reading.results:
                    if identity in self._waiting:
                        self._result(ToolResult(time=span.start, call_ids=(identity,), text=text, ok=ok))
                self.events += reading.verdicts

    def _only_agent(self, span: TraceSpan) -> bool:
        """Whether nothing but this agent is in a run: a workflow named after its first agent holds others as well."""
        return not self.events and _outermost_agents(self.span)[0] == [span]

    def _all(self, span: TraceSpan, purpose: Purpose, depth: int) -> None:
        for child in span.children:
            self._visit(child, purpose, depth + 1)

    def _purpose(self, span: TraceSpan, purpose: Purpose) -> Purpose:
        """smolagents makes a plan, and an answer when it has used up its steps, by a model call outside of any step."""
        if span.parent != self.span.id or "smolagents.max_steps" not in self.span.attributes:
            return purpose
        later = any(_STEP.match(other.name) and other.order >= span.order for other in self.span.children)
        return Purpose.PLAN if later else Purpose.ANSWER

    def _step(self, span: TraceSpan, reading: SpanReading, depth: int) -> None:
        """A step of smolagents: where it ran code, its output is the code's result. Its error is that of its calls."""
        begin = len(self.events)
        self.code, self._stepping = None, True
        self._all(span, Purpose.ACT, depth)
        code, self.code, self._stepping = self.code, None, False
        inner = self.events[begin:]
        if code is not None:
            reports = tuple(event.run.id for event in inner if isinstance(event, SubRun))
            text = reading.error or reading.output or ""
            self._result(ToolResult(call_ids=(code,), text=text, ok=reading.error is None, report_of=reports))
            return
        made = [call.id for event in inner if isinstance(event, ModelCall) for call in event.calls]
        left = [identity for identity in made if identity in self._waiting]
        if reading.error and not any(isinstance(event, ToolResult) for event in inner):
            self._change_last(begin, error=None if left else reading.error)
        for identity in left:
            runs = [event.run for event in inner if isinstance(event, SubRun) and event.call_id == identity]
            if runs or reading.error:
                text = "\n".join(filter(None, (run.answer for run in runs))) or reading.error or ""
                reports, ok = tuple(run.id for run in runs), bool(runs) or not reading.error
                self._result(ToolResult(call_ids=(identity,), text=text, ok=ok, report_of=reports))

    def _change_last(self, begin: int, **changes: object) -> None:
        """Change the last model call from the event `begin` on."""
        for index in reversed(range(begin, len(self.events))):
            if isinstance(self.events[index], ModelCall):
                self.events[index] = self.events[index].model_copy(update=changes)
                return

    def _model(self, span: TraceSpan, reading: SpanReading, purpose: Purpose) -> None:
        self._definitions |= reading.definitions
        for message in reading.heard:
            self._recover(span, message)
            for identity, text in message.answers:
                if identity in self._waiting:
                    ok = identity not in message.failed
                    self._result(ToolResult(time=span.start, call_ids=(identity,), text=text, ok=ok))
        self._recall(reading)
        messages = self._new_messages(reading)
        said = [message for message in reading.said if message.text or message.thought or message.calls]
        if not said and reading.error is None:
            spent = (reading.usage or Usage()).model_copy(update={"model_calls": 1})
            what, reason = f"model call {span.name}", "its span has no content"
            self.left_out.append(LeftOut(what=what, reason=reason, place=span.id, usage=spent))
            return
        text = "\n".join(message.text for message in said if message.text)
        made = [call for message in said for call in message.calls if call.id not in self._recovered]
        calls = self._numbered(made)
        if not calls and self._stepping and purpose is Purpose.ACT:
            text, block = split_code(text)
            if block is not None:
                self._calls += 1
                calls = (ToolCall(id=f"code_{self._calls}", name=CODE_TOOL, arguments={"code": block}),)
                self.code = calls[0].id
        finishing = [call for call in calls if call.name in FINISHING]
        if finishing:
            purpose = Purpose.ANSWER
            self.handed_in = handed_in(finishing[-1]) or self.handed_in
        rewritten = purpose is Purpose.ACT and len(reading.heard) < self._longest
        if purpose in (Purpose.ACT, Purpose.ANSWER):
            self._longest = max(self._longest, len(reading.heard))
        kept = tuple(call for call in calls if call not in finishing)
        self._waiting |= {call.id: call for call in kept}
        thought = "\n".join(message.thought for message in said if message.thought)
        self.events.append(
            ModelCall(
                time=span.start, purpose=purpose, messages=messages, rewritten=rewritten, thought=thought, text=text,
                calls=kept, model=reading.model, usage=reading.usage, error=reading.error,
            )
        )  # fmt: skip
        for message in said:  # of tools that the model's server ran
            for identity, text in message.answers:
                ok = identity not in message.failed
                self._result(ToolResult(time=span.start, call_ids=(identity,), text=text, ok=ok))

    def _recall(self, reading: SpanReading) -> None:
        """Thoughts that the span of a reply lacks and the request after it repeats."""
        thoughts = {call.id: said.thought for said in reading.heard if said.thought for call in said.calls}
        for index, event in enumerate(self.events if thoughts else ()):
            if isinstance(event, ModelCall) and not event.thought:
                thought = next((thoughts[call.id] for call in event.calls if call.id in thoughts), "")
                if thought:
                    self.events[index] = event.model_copy(update={"thought": thought})

    def _recover(self, span: TraceSpan, message: Said) -> None:
        """A call of this agent that no span of a model has, as the history of a later one shows it.

        OpenInference on Google ADK 2.12 and later writes all model calls of a turn into one span, over each other.
        """
        ids = {call.id for call in message.calls}
        if not ids or ids & {*self._waiting, *self._answered} or not ids <= self._tool_ids():
            return
        self._recovered |= ids
        self._waiting |= {call.id: call for call in message.calls}
        self.events.append(ModelCall(time=span.start, thought=message.thought, text=message.text, calls=message.calls))

    def _tool_ids(self) -> set[str]:
        """Ids of the calls that this agent's tools carried out."""
        found, waiting = set[str](), list(self.span.children)
        while waiting:
            reading = read_span(span := waiting.pop())
            if reading.role is SpanRole.TOOL and reading.call_id:
                found.add(reading.call_id)
            elif reading.role is not SpanRole.AGENT or reading.name == self.reading.name:
                waiting += span.children
        return found

    def _new_messages(self, reading: SpanReading) -> tuple[ChatMessage, ...]:
        new = []
        self.system = self.system or reading.system
        for said in reading.heard:
            text = said.text or "\n".join(answer for _, answer in said.answers)
            message = ChatMessage(role=said.role, text=text)
            if message in self._read:
                continue
            self._read.add(message)
            if said.role == "system" and not self.system:
                self.system = said.text
            elif said.role == "user" and not self.request:
                self.request = unwrapped_task(said.text)
            if not (said.role == "system" and said.text == self.system):
                new.append(message)
        return tuple(new)

    def _numbered(self, calls: list[ToolCall]) -> tuple[ToolCall, ...]:
        """Makes ids unique within the run: some libraries start numbering again in each message."""
        found = []
        for call in calls:
            taken = call.id in self._waiting or call.id in self._answered
            if taken:
                self._calls += 1
            found.append(call.model_copy(update={"id": f"{call.id}_{self._calls}"}) if taken else call)
        return tuple(found)

    def _tool(self, span: TraceSpan, reading: SpanReading, depth: int) -> None:
        known = set(map(plain_name, self._definitions))
        self._definitions |= {n: schema for n, schema in reading.definitions.items() if plain_name(n) not in known}
        if reading.call_id in self._recovered & self._answered:
            return
        text = reading.output or reading.error or ""  # the agent reads what the tool gave back, of an error too
        if reading.name in FINISHING and reading.error is None:
            self.handed_in = reading.output if reading.output is not None else self.handed_in
            self._change_last(0, purpose=Purpose.ANSWER)
            return
        begin = len(self.events)
        if (agent := hidden_agent(span, read_span)) is not None:
            self.events.append(SubRun(time=span.start, run=_Run(agent, self.left_out, depth).built()))
        else:
            same = [child for child in span.children if _same_tool(reading, read_span(child))]
            for child in (*(below for one in same for below in one.children), *span.children):
                if child not in same:
                    self._visit(child, Purpose.TOOL, depth + 1)
            reading = next(
                (replace(reading, call_id=found) for one in same if (found := read_span(one).call_id)), reading
            )
        runs = tuple(event.run.id for event in self.events[begin:] if isinstance(event, SubRun))
        call = self._match(reading)
        if call is None:
            self._calls += 1
            unused = reading.call_id if reading.call_id not in self._answered else None
            identity, ok = unused or f"{reading.name}_{self._calls}", reading.error is None
            made = ToolCall(id=identity, name=reading.name, arguments=reading.arguments, agent=bool(runs))
            self._under(begin, identity)
            self.events.append(CodeCall(time=span.start, within=self.code, call=made, text=text, ok=ok))
            return
        if not call.arguments and reading.arguments:
            # The model's span dropped the arguments; the tool's span has them.
            whole = call.model_copy(update={"arguments": reading.arguments})
            for index, event in enumerate(self.events):
                if isinstance(event, ModelCall) and call in event.calls:
                    calls = tuple(whole if item is call else item for item in event.calls)
                    self.events[index] = event.model_copy(update={"calls": calls})
                    break
        self._under(begin, call.id)
        self._result(
            ToolResult(time=span.start, call_ids=(call.id,), text=text, ok=reading.error is None, report_of=runs)
        )

    def _under(self, begin: int, call_id: str) -> None:
        """The call that encloses the sub-runs from the event `begin` on is the one that started them."""
        self.events[begin:] = [
            event.model_copy(update={"call_id": call_id}) if isinstance(event, SubRun) else event
            for event in self.events[begin:]
        ]

    def _match(self, reading: SpanReading) -> ToolCall | None:
        """The call without a result so far that a tool's span belongs to."""
        if reading.call_id in self._waiting:
            return self._waiting[reading.call_id]
        # CrewAI calls a tool "Delegate work" in one span and "delegate_work" in another.
        name = plain_name(reading.name)
        named = [call for call in self._waiting.values() if plain_name(call.name) == name]
        exact = [call for call in named if dict(call.arguments) == reading.arguments]
        return next(iter(exact or named), None)

    def _calling(self, agent: str) -> str | None:
        """The call that a sub-agent's run answers: the code that is being run, or a call by its name."""
        named = (call.id for call in self._waiting.values() if call.name.removeprefix("transfer_to_") == agent)
        return self.code if self.code is not None else next(named, None)

    def _result(self, result: ToolResult) -> None:
        for identity in result.call_ids:
            self._waiting.pop(identity, None)
            self._answered.add(identity)
        self.events.append(result)
