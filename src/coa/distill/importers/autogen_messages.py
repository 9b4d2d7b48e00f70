"""Runs of AutoGen: the messages of a `TaskResult`, or the state of a team, which holds the same messages.

    [message.model_dump(mode="json") for message in result.messages]
    result.model_dump(mode="json")
    await team.save_state()

Each message has a source, the agent that wrote it, and a type. A model call is a thought and the calls or the text that
follow it; summaries and hand-off messages repeat results of tools and are no turns of a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from coa.distill.importers.content import (
    as_calls,
    as_result,
    as_task,
    as_text,
    as_time,
    as_usage,
    last_answer,
    mappings,
    team_run,
)
from coa.distill.importers.trace_format import TraceFormat
from coa.distill.team_run import AgentRun, Event, LeftOut, ModelCall, Note, Source, SubRun, TeamRun, ToolResult
from coa.errors import TraceError

Json = Mapping[str, Any]
_USER: Final = "user"
_SAID: Final = frozenset({"TextMessage", "StructuredMessage", "MultiModalMessage", "StopMessage"})
_THOUGHT, _CALLED, _RETURNED = "ThoughtEvent", "ToolCallRequestEvent", "ToolCallExecutionEvent"
_REPEATS: Final = frozenset({"HandoffMessage", "ToolCallSummaryMessage", "ModelClientStreamingChunkEvent"})
_ASIDE: Final = frozenset(
    {"UserInputRequestedEvent", "MemoryQueryEvent", "SelectSpeakerEvent", "SelectorEvent"}
    | {"CodeGenerationEvent", "CodeExecutionEvent"}
)
_TYPES: Final = _SAID | _REPEATS | _ASIDE | {_THOUGHT, _CALLED, _RETURNED}


def from_autogen(row: Json) -> Json:
    """What AutoGen's client of a model returned, as a message of OpenAI's form; anything else as it is.

    A list of calls is the content, and what the model wrote before them is a `thought`, as its reasoning is elsewhere.
    """
    content = row.get("content")
    if "thought" not in row or "finish_reason" not in row:
        return row
    if isinstance(content, list):
        return {**row, "content": as_text(row["thought"]), "tool_calls": content}
    return {**row, "reasoning_content": as_text(row["thought"])}


def last_words(messages: object) -> str | None:
    """What the last message of a run says; None where it is no run of AutoGen."""
    rows = mappings(messages)
    return as_text(rows[-1].get("content")) if rows and all(map(_is_message, rows)) else None


def _is_message(row: object) -> bool:
    if not isinstance(row, Mapping) or "source" not in row or "role" in row:
        return False
    return row.get("type") in _TYPES or str(row.get("type")).startswith("StructuredMessage")


def _messages(value: object) -> list[Json]:
    """The messages in any of the forms, or none."""
    if isinstance(value, Mapping) and isinstance(value.get("agent_states"), Mapping):
        threads = [state["message_thread"] for state in value["agent_states"].values() if "message_thread" in state]
        return _messages(threads[0]) if threads else []
    rows = value.get("messages") if isinstance(value, Mapping) else value
    found = mappings(rows)
    return found if isinstance(rows, list) and found and all(map(_is_message, rows)) else []


def is_autogen(value: object) -> bool:
    return bool(_messages(value))


def read_autogen(value: Any, file: str = "", place: str = "") -> TeamRun:
    messages = _messages(value)
    asked = next((row for row in messages if row["source"] == _USER), None)
    speakers = [row["source"] for row in messages if row["source"] != _USER]
    if asked is None or not speakers:
        raise TraceError("no message of the user says what the task was" if speakers else "no agent says anything")
    question, identity = as_text(asked.get("content")), as_text(asked.get("id"))
    reader = _Reader(str(speakers[0]), identity or "run")
    for row in messages:
        if row is not asked:
            reader.read(row)
    root = reader.built(question)
    source = Source(format=FORMAT.name, file=file, place=place)
    return team_run(as_task(question, None, identity or None), root, source, reader.left_out)


class _Reader:
    """The first agent that speaks is the root; turns of others are runs of their own."""

    def __init__(self, host: str, identity: str) -> None:
        self._host, self._identity = host, identity
        self._events: list[Event] = []
        self._guest = AgentRun(id="", agent="")
        self._guests = 0
        self._thought = ""
        self.left_out: list[LeftOut] = []

    def read(self, row: Json) -> None:
        kind, source, text = str(row["type"]), str(row["source"]), as_text(row.get("content"))
        time = as_time(row.get("created_at"))
        if kind in _REPEATS:
            return
        if kind == _THOUGHT:
            self._thought = text
        elif source == _USER:
            self._add(self._guest.agent or self._host, Note(time=time, text=text))
        elif kind == _RETURNED:
            for result in mappings(row.get("content")):
                shown, ok = as_result(result.get("content"))
                failed = bool(result.get("is_error")) or not ok
                self._add(
                    source, ToolResult(time=time, call_ids=(str(result.get("call_id")),), text=shown, ok=not failed)
                )
        elif kind == _CALLED or kind in _SAID or kind.startswith("StructuredMessage"):
            calls = as_calls(row.get("content")) if kind == _CALLED else ()
            # Before calls, what AutoGen names a thought is what the model wrote; elsewhere it is its reasoning.
            wrote = {"text": self._thought, "calls": calls} if calls else {"text": text, "thought": self._thought}
            self._thought = ""
            usage = as_usage(row.get("models_usage"))
            self._add(source, ModelCall.model_validate({"time": time, "usage": usage, **wrote}))
        else:
            reason = "a message of this kind is not a turn of an agent"
            self.left_out.append(LeftOut(what=f"{kind} of {source}", reason=reason, place=as_text(row.get("id"))))

    def _add(self, source: str, event: Event) -> None:
        if source == self._host:
            self._close()
            self._events.append(event)
            return
        if source != self._guest.agent:
            self._close()
            self._guests += 1
            self._guest = AgentRun(id=f"{self._identity}/{self._guests}", agent=source)
        self._guest = self._guest.model_copy(update={"events": (*self._guest.events, event)})

    def _close(self) -> None:
        if self._guest.events:
            run = self._guest.model_copy(update={"answer": last_answer(self._guest.events)})
            self._events.append(SubRun(time=run.events[0].time, run=run))
        self._guest = AgentRun(id="", agent="")

    def built(self, question: str) -> AgentRun:
        self._close()
        last = self._events[-1] if self._events else None
        answer = last.run.answer if isinstance(last, SubRun) else last_answer(self._events)
        return AgentRun(
            id=self._identity, agent=self._host, request=question, events=tuple(self._events), answer=answer
        )


FORMAT: Final = TraceFormat("autogen", "messages of AutoGen", is_autogen, read=read_autogen, takes_lists=True)
