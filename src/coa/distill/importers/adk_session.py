"""Sessions of Google ADK, as `session.model_dump_json()` writes them: the events of all agents, one after another.

Each event has an author: the events of one agent between those of two others are its turn. An agent that was called as
a tool (`AgentTool`) works in a session of its own, which is not in the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from coa.distill.importers.content import as_text, as_time, as_usage, last_answer, mappings, team_run
from coa.distill.importers.gemini_messages import as_gemini_usage, is_gemini
from coa.distill.importers.messages import Said, message
from coa.distill.importers.trace_format import TraceFormat
from coa.distill.team_run import AgentRun, Event, ModelCall, Note, Source, SubRun, TeamRun, ToolResult
from coa.errors import TraceError
from coa.trajectory.types import Task

Json = Mapping[str, Any]
_USER: Final = "user"


def is_adk_session(row: object) -> bool:
    if not isinstance(row, Mapping) or not isinstance(row.get("events"), list):
        return False
    named = ("app_name" in row or "appName" in row) and ("user_id" in row or "userId" in row)
    return named and all(isinstance(event, Mapping) and "author" in event for event in row["events"])


def read_adk_session(row: Json, file: str = "", place: str = "") -> TeamRun:
    identity = as_text(row.get("id")) or "session"
    question, turns = "", list[AgentRun]()
    for event in mappings(row["events"]):
        content = event.get("content")
        said = message(content) if is_gemini(content) else Said("assistant")
        if event.get("partial") or (said == Said("assistant") and not _error(event)):
            continue  # a piece of a streamed reply, which comes again as a whole; or a change of the session's state
        if event["author"] == _USER and not question:
            question = said.text
            continue
        author = str(event["author"]) if event["author"] != _USER or not turns else turns[-1].agent
        if not turns or turns[-1].agent != author:
            turns.append(AgentRun(id=f"{identity}/{len(turns) + 1}", agent=author, request=question))
        turns[-1] = _with(turns[-1], _events(event, said))
    if not question or not turns:
        raise TraceError("no event of the user says what the task was" if turns else "no agent says anything")
    root = AgentRun(
        id=identity, agent=turns[0].agent, request=question, answer=turns[-1].answer,
        events=tuple(SubRun(time=turn.events[0].time, run=turn) for turn in turns),
    )  # fmt: skip
    source = Source(format=FORMAT.name, file=file, place=place)
    return team_run(Task(id=identity, question=question), root, source, ())


def _events(event: Json, said: Said) -> list[Event]:
    time = as_time(event.get("timestamp"))
    if event["author"] == _USER:
        return [Note(time=time, text=said.text)]
    results: list[Event] = [
        ToolResult(time=time, call_ids=(call,), text=text, ok=call not in said.failed) for call, text in said.answers
    ]
    if results:
        return results
    usage = as_usage(as_gemini_usage(event.get("usage_metadata", event.get("usageMetadata"))))
    model = as_text(event.get("model_version", event.get("modelVersion"))) or None
    wrote = {"thought": said.thought, "text": said.text, "calls": said.calls, "error": _error(event)}
    return [ModelCall.model_validate({"time": time, "model": model, "usage": usage, **wrote})]


def _error(event: Json) -> str | None:
    names = ("error_message", "errorMessage", "error_code", "errorCode")
    return as_text(next((event[name] for name in names if event.get(name)), None)) or None


def _with(turn: AgentRun, events: list[Event]) -> AgentRun:
    found = (*turn.events, *events)
    return turn.model_copy(update={"events": found, "answer": last_answer(found)})


FORMAT: Final = TraceFormat("adk", "sessions of Google ADK", is_adk_session, read=read_adk_session)
