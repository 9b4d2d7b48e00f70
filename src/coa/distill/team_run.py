"""One recorded run of a team of agents: what every importer gives and the converter reads.

A run is a tree. Each `AgentRun` holds its events in the order they began; the run of a sub-agent comes, as one event,
right after the model call that asked for it, so reading depth-first gives every event once, in order. Nothing in here
is CoA yet: agents keep the names the team gave them, and no role is assigned. On disk a team run is ATIF
(`atif_writer.py`, `importers/atif_reader.py`).

    read_traces(paths) -> Iterator[TeamRun | Trajectory | Skipped]       importers/detect.py
      TeamRun      one task and its tree of agent runs
      Trajectory   a row that already is one model's trajectory (AFM's SFT rows): past the converter, on to the filters
      Skipped      a file, or a part of one, that could not be read, and why
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import Field, field_validator, model_validator

from coa.trajectory.types import EMPTY, Failure, Frozen, Meta, Stop, Task, Text, Usage

RECORDED: Final = "recorded"
"""The format of runs from our own recorder, kept as ATIF."""


class Source(Frozen):
    """Where a run was read from."""

    format: str
    """The `TraceFormat.name`, or a kind that the reader of the format distinguishes: `recorded`, `openinference`."""
    file: str = ""
    place: str = ""
    """Line, row, trace or session inside the file, where it holds several runs."""


class LeftOut(Frozen):
    """Something the trace holds that is in no event, and why. What it cost still counts."""

    what: Text
    reason: Text
    place: str = ""
    usage: Usage | None = None


class Skipped(Frozen):
    """A file or a part of it that gave no run."""

    file: str
    reason: Text
    place: str = ""


class ToolCall(Frozen):
    """A call as the model wrote it, whether or not it was carried out."""

    id: Text
    """Unique within its agent run; made up where the source has none."""
    name: Text
    arguments: Meta = Field(default_factory=lambda: EMPTY)
    """Code blocks are `{"code": ...}`; arguments that are no JSON object are `{"text": ...}`."""
    agent: bool = False
    """It calls a member of the team, not a tool."""


class ChatMessage(Frozen):
    role: str
    text: Text


def reasoning_apart(text: str) -> tuple[str, str]:
    """What a reasoning model thought, and what it said: `<think>...</think>` at the head of its text, once or more.

    Some servers omit the opening tag. Without a closing tag the whole text is a thought that was cut off.
    """
    thoughts: list[str] = []
    while "think>" in text:
        head, closing, said = text.partition("</think>")
        opened = head.lstrip().startswith("<think>")
        if not (opened or (closing and "<think>" not in head)):
            break
        thoughts.append(head.lstrip().removeprefix("<think>").strip())
        text = said.lstrip()
    return "\n\n".join(filter(None, thoughts)), text


class Purpose(StrEnum):
    """What a model call was for, where the source says so by type. What names suggest is left to the converter."""

    ACT = "act"
    PLAN = "plan"
    ANSWER = "answer"
    """It hands in the run's answer: through a finishing tool (which then is in no `calls` and has no result), in code
    whose call does stay, or because a limit ended the run."""
    TOOL = "tool"
    """A model used inside a tool, such as one that sums up a page."""


class _Event(Frozen):
    time: float | None = None
    """Seconds since 1970 at which it began."""
    copied: bool = False
    """Context repeated from elsewhere: counted nowhere, trained nowhere."""
    meta: Meta = Field(default_factory=lambda: EMPTY)


class ModelCall(_Event):
    kind: Literal["model_call"] = "model_call"
    purpose: Purpose = Purpose.ACT
    messages: tuple[ChatMessage, ...] = ()
    """What it read that no earlier call of its run had read, without the run's system prompt."""
    rewritten: bool = False
    """Its input does not extend the previous call's: the context was compacted or rewritten."""
    thought: Text = ""
    """Reasoning that the source keeps apart from the text."""
    text: Text = ""
    """What the model wrote, without the code or the calls that `calls` holds."""
    calls: tuple[ToolCall, ...] = ()
    model: str | None = None
    usage: Usage | None = None
    """None where the source does not say; then `TeamRun.unmetered_calls` counts it."""
    error: Text | None = None
    """The call failed, or what it wrote could not be read as an action."""

    @model_validator(mode="before")
    @classmethod
    def _thought_apart(cls, data: Any) -> Any:
        """Left in the text, the tags of a teacher's reasoning would be taught as words."""
        text = data.get("text") if isinstance(data, dict) else None
        if not isinstance(text, str) or "think>" not in text:
            return data
        thought, said = reasoning_apart(text)
        before = data.get("thought")
        return {**data, "text": said, "thought": "\n\n".join(filter(None, (before, thought)))}


class ToolResult(_Event):
    """What came back for a call. After a sub-agent's run: its report, which repeats what is there."""

    kind: Literal["tool_result"] = "tool_result"
    call_ids: tuple[str, ...] = ()
    """The calls it answers: one; several where the source merged them; none where it does not say."""
    text: Text = ""
    ok: bool = True
    """False when the tool, the code or the sub-agent failed; `text` is then the error."""
    report_of: tuple[str, ...] = ()
    """Ids of the agent runs whose reports the text repeats."""


class CodeCall(_Event):
    """A tool that code written by the model called. It comes between the code's model call and the code's result."""

    kind: Literal["code_call"] = "code_call"
    within: str | None = None
    """Id of the call that ran the code."""
    call: ToolCall
    text: Text = ""
    ok: bool = True


class Note(_Event):
    """Words that neither a model nor a tool of the team wrote: a later user turn, a system message, a hand-over."""

    kind: Literal["note"] = "note"
    role: str = "user"
    text: Text = ""


class EvaluatorVerdict(_Event):
    """A judgement on what comes before it: an evaluator span, a reward model's score with its thought."""

    kind: Literal["verdict"] = "verdict"
    judge: str = ""
    score: float | None = None
    """As given, on the judge's scale."""
    label: str = ""
    text: Text = ""


class SubRun(_Event):
    """The run of another agent, at the place where it was called."""

    kind: Literal["sub_run"] = "sub_run"
    call_id: str | None = None
    """The call that started it (a code block may start several); None where the source does not link them."""
    run: AgentRun


Event = Annotated[ModelCall | ToolResult | CodeCall | Note | EvaluatorVerdict | SubRun, Field(discriminator="kind")]


class AgentRun(Frozen):
    """One agent at work on what it was asked, from start to end."""

    id: str
    """Unique within the team run."""
    agent: str
    """The name the team gave it."""
    type: str = ""
    """What the source calls its kind, e.g. `CodeAgent`; empty where it does not say."""
    description: Text = ""
    tools: tuple[str, ...] = ()
    """Names of what it may call, members of the team included."""
    system: Text = ""
    """Its system prompt: never trained, kept to infer roles."""
    request: Text = ""
    """What it was asked, without the wrapper the library put around it."""
    events: tuple[Event, ...] = ()
    answer: Text | None = None
    """Its final answer or report; None when it ended without one."""
    error: Text | None = None
    """Why it ended early, where it did."""
    meta: Meta = Field(default_factory=lambda: EMPTY)

    @field_validator("answer")
    @classmethod
    def _without_thought(cls, answer: str | None) -> str | None:
        return answer if answer is None else reasoning_apart(answer)[1]

    def walk(self) -> Iterator[AgentRun]:
        """This run and every one below it, in the order in which they began."""
        yield self
        for event in self.events:
            if isinstance(event, SubRun):
                yield from event.run.walk()

    @property
    def model_calls(self) -> tuple[ModelCall, ...]:
        """The model calls of this agent, without copied context and without those of sub-agents."""
        return tuple(event for event in self.events if isinstance(event, ModelCall) and not event.copied)


class TeamRun(Frozen):
    """One attempt of a team at one task."""

    task: Task
    """Question and, where the trace or a task file knows them, the accepted answers."""
    root: AgentRun
    """The manager, or the only agent."""
    source: Source
    stop: Stop = Stop.ANSWERED
    failure: Failure | None = None
    left_out: tuple[LeftOut, ...] = ()
    reported_usage: Usage | None = None
    """The totals that the source itself claims; they may miss sub-agents, `usage` does not."""
    meta: Meta = Field(default_factory=lambda: EMPTY)

    @property
    def answer(self) -> str | None:
        return self.root.answer

    @property
    def usage(self) -> Usage:
        """Every model call of every agent, and what was left out but paid for. Tool calls are those that ran."""
        model_calls = tools = 0
        parts = [item.usage for item in self.left_out if item.usage is not None]
        for event in (event for run in self.root.walk() for event in run.events if not event.copied):
            if isinstance(event, ModelCall):
                model_calls += 1
                if event.usage is not None:
                    parts.append(event.usage.model_copy(update={"model_calls": 0, "tool_calls": 0}))
            elif isinstance(event, ToolResult):
                tools += max(1, len(event.call_ids)) if not event.report_of else 0
            elif isinstance(event, CodeCall):
                tools += 1
        return Usage.sum([*parts, Usage(model_calls=model_calls, tool_calls=tools)])

    @property
    def unmetered_calls(self) -> int:
        """Model calls whose tokens nobody counted: with any of these, `usage` is a lower bound."""
        return sum(call.usage is None for run in self.root.walk() for call in run.model_calls)


SubRun.model_rebuild()


def decisions_in(team_run: TeamRun) -> tuple[str, ...]:
    """What the importer decided about who is who and who called whom, and could have decided otherwise."""
    inferred = team_run.meta.get("inferred")
    notes = inferred.get("notes") if isinstance(inferred, dict) else None
    return tuple(str(note) for note in notes) if isinstance(notes, list | tuple) else ()


def without_times(team_run: TeamRun) -> TeamRun:
    """The same run without the times at which things happened and how long they took."""
    return team_run.model_copy(update={"root": _untimed(team_run.root)})


def _untimed(run: AgentRun) -> AgentRun:
    events: list[Event] = []
    for event in run.events:
        changes: dict[str, object] = {"time": None}
        if isinstance(event, ModelCall) and event.usage is not None:
            changes["usage"] = event.usage.model_copy(update={"seconds": 0.0})
        elif isinstance(event, SubRun):
            changes["run"] = _untimed(event.run)
        events.append(event.model_copy(update=changes))
    return run.model_copy(update={"events": tuple(events)})
