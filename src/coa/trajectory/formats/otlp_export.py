"""A run as spans by OpenTelemetry's GenAI conventions, so that Phoenix, MLflow, Langfuse and others open it.

The run is the span `invoke_agent coa`. In it, each activation of a role agent is a span `invoke_agent {tag}`, each text
that the model wrote a span `chat {model}` (inside of its agent's span, if it is a role's), each answered tool call a
span `execute_tool {tag}`. Notes that the runtime wrote to the model are events of the run's span. Attributes named
`gen_ai.*` are those that the conventions publish; what they have no name for is under `coa.*`. The
two exceptions are `input.value` and `output.value`: Phoenix shows them in its list of runs.

Without `content` there is no text of a user, a model or a tool in the spans. With it, they hold everything that
`importers/spans/own_run.py` needs to read the same run from them, except for token ids and their log-probabilities.

Ids are computed from the run, so a run that is sent twice is there once. Trajectories do not say when they were made,
only how long they took: the caller says when the run ended, and steps whose duration is not recorded share the time
that is left.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from coa.trajectory.definitions import definition
from coa.trajectory.formats.otlp_wire import Span, SpanEvent, SpanKind, Value
from coa.trajectory.profile import Kind, Profile
from coa.trajectory.shapes import Reading, read
from coa.trajectory.types import OBSERVATION, Author, Message, Step, Stop, Trajectory, Usage

NAME: Final = "coa"
"""Name of the whole run as an agent, and of the provider: who serves the model is not known here."""
PROFILE: Final = "coa.profile.name"
"""On the run's span, and on no other."""
RUN: Final = "coa.run"
"""With content: the trajectory as JSON, without its steps."""
DEFINITION: Final = "coa.profile.definition"
STEPS: Final = "coa.steps"
INDEX: Final = "coa.step.index"
AGENT: Final = "coa.step.agent"
AUTHOR: Final = "coa.step.author"
TEXT: Final = "coa.step.text"
"""With content, where no attribute of the conventions has exactly the step's text."""
EXTRA: Final = "coa.step.extra"
"""With content: the other fields of the step as JSON."""
NOTE: Final = "coa.note"
_SHORTEST_NS: Final = 1_000
_LONGEST_S: Final = 1e6
_CODE: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
"""An error's kind. Anything else may be a message, and messages are content."""


def to_spans(trajectory: Trajectory, profile: Profile, *, ended_ns: int, content: bool) -> list[Span]:
    """The spans of one run, the run's own first."""
    return _Spans(trajectory, profile, ended_ns, content).built()


@dataclass
class _Spans:
    trajectory: Trajectory
    profile: Profile
    ended_ns: int
    content: bool
    trace: bytes = b""
    model: str | None = None
    made: list[Span] = field(default_factory=list)
    notes: list[SpanEvent] = field(default_factory=list)
    unread: list[dict[str, Any]] = field(default_factory=list)
    """Messages that the model has not read yet: they are the input of what it writes next."""
    waiting: list[int] = field(default_factory=list)
    """Tool calls without a result so far, by the index of their step."""

    def built(self) -> list[Span]:
        trajectory = self.trajectory
        self.trace = _trace_id(trajectory)
        model = trajectory.meta.get("model")
        self.model = str(model) if model else None
        prompt = trajectory.prompt or self.profile.messages(trajectory.task)
        self.unread = [_message(turn.role, _said(turn.content)) for turn in prompt if turn.role != "system"]
        asked = list(self.unread)
        times = _times(trajectory, self.ended_ns)
        for index, (step, (start, end)) in enumerate(zip(trajectory.steps, times.steps, strict=True)):
            if step.author is Author.MODEL:
                self._model_step(index, step, start, end)
            elif step.agent == OBSERVATION and self.waiting:
                self._tool_result(index, step, start, end)
            else:
                self._note(index, step, start)
        return [self._run(prompt, asked, times), *self.made]

    def _run(self, prompt: Sequence[Message], asked: list[dict[str, Any]], times: _Times) -> Span:
        trajectory = self.trajectory
        attributes: dict[str, Value] = {
            **self._operation("invoke_agent"),
            "gen_ai.agent.name": NAME,
            **_usage(trajectory.usage),
            PROFILE: trajectory.profile,
            "coa.task.id": trajectory.task.id,
            "coa.sample": trajectory.sample,
            "coa.stop": trajectory.stop.value,
            STEPS: len(trajectory.steps),
            "coa.model_calls": trajectory.usage.model_calls,
            "coa.tool_calls": trajectory.usage.tool_calls,
            "coa.repairs": len(trajectory.repairs),
            "coa.seconds": trajectory.usage.seconds,
        }
        if trajectory.usage.cost is not None:
            attributes["coa.cost"] = trajectory.usage.cost
        if trajectory.profile_hash is not None:
            attributes["coa.profile.hash"] = trajectory.profile_hash
        attributes |= {f"coa.score.{name}": s.value for name, s in trajectory.scores.items() if s.value is not None}
        error = None
        if trajectory.stop is Stop.FAILED and trajectory.failure is not None:
            attributes["error.type"] = trajectory.failure.site.value
            error = trajectory.failure.message if self.content else ""
        if self.content:
            attributes |= self._run_content(prompt, asked)
        events = [*self.notes, *self._verdicts(times.end)]
        return Span(
            self.trace, self._id("run"), None, f"invoke_agent {NAME}", SpanKind.INTERNAL, times.start, times.end,
            attributes, events, error,
        )  # fmt: skip

    def _run_content(self, prompt: Sequence[Message], asked: list[dict[str, Any]]) -> dict[str, Value]:
        trajectory, found = self.trajectory, dict[str, Value]()
        if system := [_said(turn.content) for turn in prompt if turn.role == "system"]:
            found["gen_ai.system_instructions"] = _json(system)
        found["gen_ai.input.messages"] = _json(asked)
        if trajectory.answer is not None:
            found["gen_ai.output.messages"] = _json([_output(_said(trajectory.answer))])
            found["output.value"] = trajectory.answer
        found["input.value"] = trajectory.task.question
        left_out = {"steps", "tokenizer", "ends"}
        found[RUN] = trajectory.model_dump_json(exclude_defaults=True, exclude=left_out)
        if (text := definition(trajectory.profile_hash)) is not None:
            found[DEFINITION] = text
        return found

    def _verdicts(self, time_ns: int) -> list[SpanEvent]:
        events = []
        for name, score in self.trajectory.scores.items():
            attributes: dict[str, Value] = {"gen_ai.evaluation.name": name}
            if score.value is not None:
                attributes["gen_ai.evaluation.score.value"] = float(score.value)
            if score.reason and self.content:
                attributes["gen_ai.evaluation.explanation"] = score.reason
            events.append(SpanEvent("gen_ai.evaluation.result", time_ns, attributes))
        return events

    def _model_step(self, index: int, step: Step, start: int, end: int) -> None:
        agent = self.profile.agents.get(step.agent)
        kind = agent.kind if agent is not None else None
        said = {"type": "reasoning", "content": step.text} if kind is Kind.THOUGHT else _said(step.text)
        parent = self._id("run")
        if kind is Kind.ROLE:
            parent = self._role(index, step, start, end)
        if kind is Kind.TOOL:
            self.waiting.append(index)
            said = self._call(index, step)
        elif kind is not Kind.THOUGHT:
            self.waiting.clear()
        attributes: dict[str, Value] = {**self._operation("chat"), **self._step(index, step)}
        if step.usage is not None:
            attributes |= _usage(step.usage)
        elif step.tokens is not None:
            attributes["gen_ai.usage.output_tokens"] = len(step.tokens.ids)
        if step.repairs:
            attributes["coa.step.repairs"] = len(step.repairs)
        if self.content:
            if self.unread:
                attributes["gen_ai.input.messages"] = _json(self.unread)
            reason = "tool_call" if kind is Kind.TOOL else "stop"
            attributes["gen_ai.output.messages"] = _json([_output(said, reason)])
            if kind is Kind.TOOL:
                attributes[TEXT] = step.text
        self.unread = []
        name = f"chat {self.model}" if self.model else "chat"
        self._add(f"chat {index}", parent, name, SpanKind.CLIENT, start, end, attributes)

    def _role(self, index: int, step: Step, start: int, end: int) -> bytes:
        attributes: dict[str, Value] = {**self._operation("invoke_agent"), "gen_ai.agent.name": step.agent}
        if self.content:
            attributes["gen_ai.output.messages"] = _json([_output(_said(step.text))])
        name = f"invoke_agent {step.agent}"
        return self._add(f"agent {index}", self._id("run"), name, SpanKind.INTERNAL, start, end, attributes)

    def _tool_result(self, index: int, step: Step, start: int, end: int) -> None:
        called = self.waiting.pop(0)
        call = self.trajectory.steps[called]
        attributes: dict[str, Value] = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": call.agent,
            "gen_ai.tool.call.id": _call_id(called),
            "gen_ai.tool.type": "function",
            **self._step(index, step),
        }
        if self.content:
            attributes["gen_ai.tool.call.arguments"] = _json(self._arguments(call))
            attributes["gen_ai.tool.call.result"] = step.text
        error = None
        if step.meta.get("ok") is False:
            error, code = "", step.meta.get("error")
            attributes["error.type"] = code if isinstance(code, str) and _CODE.fullmatch(code) else "_OTHER"
        self._add(
            f"tool {index}", self._id("run"), f"execute_tool {call.agent}", SpanKind.INTERNAL, start, end, attributes,
            error,
        )  # fmt: skip
        result = {"type": "tool_call_response", "id": _call_id(called), "response": step.text}
        self.unread.append(_message("tool", result))

    def _note(self, index: int, step: Step, time_ns: int) -> None:
        """Words of the environment that answer no call."""
        attributes = self._step(index, step)
        if self.content:
            attributes[TEXT] = step.text
        self.notes.append(SpanEvent(NOTE, time_ns, attributes))
        self.unread.append(_message("system", _said(step.text)))

    def _step(self, index: int, step: Step) -> dict[str, Value]:
        attributes: dict[str, Value] = {INDEX: index, AGENT: step.agent, AUTHOR: step.author.value}
        if self.content:
            left_out = {"agent", "text", "author", "tokens"}
            extra = step.model_dump_json(exclude_defaults=True, exclude=left_out)
            if extra != "{}":
                attributes[EXTRA] = extra
        return attributes

    def _operation(self, name: str) -> dict[str, Value]:
        found: dict[str, Value] = {"gen_ai.operation.name": name, "gen_ai.provider.name": NAME}
        if self.model:
            found["gen_ai.request.model"] = self.model
        served = self.trajectory.meta.get("served")
        if isinstance(served, dict) and (conversation := served.get("conversation")):
            found["gen_ai.conversation.id"] = str(conversation)
        return found

    def _call(self, index: int, step: Step) -> dict[str, Any]:
        return {
            "type": "tool_call", "id": _call_id(index), "name": step.agent, "arguments": self._arguments(step),
        }  # fmt: skip

    def _arguments(self, step: Step) -> dict[str, Any]:
        reading = read(self.profile.shape(step.agent), step.text)
        return dict(reading.arguments) if isinstance(reading, Reading) else {"text": step.text}

    def _add(
        self, what: str, parent: bytes, name: str, kind: SpanKind, start: int, end: int, attributes: dict[str, Value],
        error: str | None = None,
    ) -> bytes:  # fmt: skip
        identity = self._id(what)
        self.made.append(Span(self.trace, identity, parent, name, kind, start, end, attributes, (), error))
        return identity

    def _id(self, what: str) -> bytes:
        return hashlib.blake2b(what.encode(), key=self.trace, digest_size=8).digest()


def _trace_id(trajectory: Trajectory) -> bytes:
    """The same wherever the run is exported from. What is added to a run after its end, scores and meta, is not part
    of it; how long the run took is, because only that distinguishes two runs with the same words."""
    told = [[step.agent, step.author.value, step.text] for step in trajectory.steps]
    task = [trajectory.task.id, trajectory.sample, trajectory.profile, trajectory.stop.value]
    whole = orjson.dumps([task, told, trajectory.usage.model_dump(mode="json")])
    return hashlib.blake2b(whole, digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class _Times:
    start: int
    end: int
    steps: list[tuple[int, int]]


def _times(trajectory: Trajectory, ended_ns: int) -> _Times:
    """When each step began and ended, one after another."""
    whole = _nanoseconds(trajectory.usage.seconds)
    found = map(_known_ns, trajectory.steps)
    known = [None if ns is None else max(ns, _SHORTEST_NS) for ns in found]
    weights = [_weight(step) if ns is None else 0 for step, ns in zip(trajectory.steps, known, strict=True)]
    left, shares = max(whole - sum(filter(None, known)), 0), max(sum(weights), 1)
    lengths = [
        max(left * weight // shares if ns is None else ns, _SHORTEST_NS)
        for ns, weight in zip(known, weights, strict=True)
    ]
    total = max(whole, sum(lengths))
    start = at = max(ended_ns - total, 1)
    steps = []
    for length in lengths:
        steps.append((at, at + length))
        at += length
    return _Times(start, start + total, steps)


def _known_ns(step: Step) -> int | None:
    """How long a step took; None for one that shares what is left of the run's time."""
    if step.author is Author.ENVIRONMENT:
        seconds = step.meta.get("seconds")
        return _nanoseconds(seconds) if isinstance(seconds, int | float) else 0
    return _nanoseconds(step.usage.seconds) if step.usage is not None and step.usage.seconds else None


def _weight(step: Step) -> int:
    return (len(step.tokens.ids) if step.tokens is not None else len(step.text) // 4) + 1


def _nanoseconds(seconds: float) -> int:
    return round(min(max(seconds, 0.0), _LONGEST_S) * 1e9)


def _usage(usage: Usage) -> dict[str, Value]:
    return {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
    }


def _call_id(index: int) -> str:
    return f"call_{index}"


def _said(text: str) -> dict[str, Any]:
    return {"type": "text", "content": text}


def _message(role: str, part: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "parts": [part]}


def _output(part: dict[str, Any], reason: str = "stop") -> dict[str, Any]:
    return {**_message("assistant", part), "finish_reason": reason}


def _json(value: object) -> str:
    return orjson.dumps(value).decode()
