"""Conversations in OpenAI's chat form, as JSON or JSONL: MiroFlow, OWL, MetaGPT, dumps of LangGraph and many more.

A row is a conversation (`messages`, or a list of messages) or one message (`role`, `content`). Rows of one `session_id`
are joined, and so are single messages without one: they are one conversation. A session with a `parent_call_id` is a
sub-agent's and belongs to the tool call of that id, anywhere in the file. Optional on either kind of row: `agent`,
`question`, `answer` (gold), `id` or `task_id`, `usage`, `model`, `tools`. Messages of LangChain and of PydanticAI are
read as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from coa.distill.importers.ag2_messages import from_ag2
from coa.distill.importers.content import (
    FINISHING,
    MOST_DEEP,
    as_calls,
    as_task,
    as_text,
    as_thought,
    as_time,
    as_usage,
    handed_in,
    team_run,
)
from coa.distill.importers.json_files import FAULTS, Bad, grouped, reason_of, values
from coa.distill.importers.langchain_messages import from_langchain, is_handoff_back, is_langchain
from coa.distill.importers.messages import ROLES, definitions_in
from coa.distill.importers.pydantic_messages import from_pydantic, is_pydantic
from coa.distill.importers.trace_format import TraceFormat
from coa.distill.team_run import (
    AgentRun,
    Event,
    LeftOut,
    ModelCall,
    Note,
    Purpose,
    Skipped,
    Source,
    SubRun,
    TeamRun,
    ToolCall,
    ToolResult,
)
from coa.errors import TraceError

Json = Mapping[str, Any]
_SESSION: Final = ("session_id", "conversation_id", "thread_id", "run_id")


def is_chat(row: object) -> bool:
    if isinstance(row, list):
        return bool(row) and all(map(_is_message, row))
    if not isinstance(row, Mapping):
        return False
    messages = row.get("messages")
    if isinstance(messages, list):
        found = (
            isinstance(item, Mapping) and ("role" in item or "type" in item or is_pydantic(item)) for item in messages
        )
        return bool(messages) and all(found)
    return _is_message(row)


def _is_message(row: object) -> bool:
    if not isinstance(row, Mapping) or isinstance(row.get("messages"), list):
        return False
    return ("role" in row and ("content" in row or "tool_calls" in row)) or is_langchain(row) or is_pydantic(row)


@dataclass
class Session:
    """One conversation, put together from its rows."""

    id: str
    messages: list[Json] = field(default_factory=list)
    agent: str = ""
    parent_call: str | None = None
    about: dict[str, Any] = field(default_factory=dict)

    def add(self, row: Json) -> None:
        messages = row.get("messages")
        self.messages += messages if isinstance(messages, list) else [row]
        whole = isinstance(messages, list)
        self.agent = self.agent or (as_text(row.get("agent") or row.get("agent_name")) if whole else "")
        self.parent_call = self.parent_call or (as_text(row.get("parent_call_id")) or None)
        for name in ("question", "answer", "id", "task_id", "usage", "model", "tools"):
            # On a row that is one message, `id`, `usage` and `model` are the message's.
            if row.get(name) is not None and (whole or name in ("question", "answer", "task_id")):
                self.about.setdefault(name, row[name])


def read_chat(path: Path) -> Iterator[TeamRun | Skipped]:
    """Sessions joined into teams by who called whom; each team is given as soon as its last row was read."""
    team_of = _teams(path)
    bad: list[Bad] = []

    def rows() -> Iterator[tuple[str, tuple[str, Json]]]:
        bad.clear()
        for place, value in _rows(path):
            if isinstance(value, Bad):
                bad.append(value)
            elif not is_chat(value):
                bad.append(Bad(place, "it is not a conversation"))
            else:
                session = _session(value, place)
                yield team_of.get(session, session), (session, value)

    for team, group in grouped(rows):
        sessions: dict[str, Session] = {}
        for session, row in group:
            sessions.setdefault(session, Session(session)).add(row)
        try:
            yield from_sessions(list(sessions.values()), str(path), str(team))
        except (TraceError, *FAULTS) as error:  # a damaged conversation does not affect the others
            yield Skipped(file=str(path), place=str(team), reason=reason_of(error))
    for item in bad:
        yield Skipped(file=str(path), place=item.place, reason=item.reason)


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    """The rows of a file with all messages in OpenAI's form."""
    for place, row in _raw_rows(path):
        if not isinstance(row, Mapping):
            yield place, row
        elif isinstance(row.get("messages"), list):
            yield place, {**row, "messages": _as_openai(row["messages"])}
        elif is_pydantic(row):
            yield place, {"session_id": _session(row, place), "messages": _as_openai([row])}
        else:
            yield place, from_langchain(row)


def _as_openai(messages: list[Any]) -> list[Any]:
    found: list[Any] = []
    for message in from_ag2(messages):
        found += from_pydantic(message) if is_pydantic(message) else [message]
    given = (from_langchain(message) if isinstance(message, Mapping) else message for message in found)
    return [message for message in given if not (isinstance(message, Mapping) and is_handoff_back(message))]


def _raw_rows(path: Path) -> Iterator[tuple[str, Any]]:
    for place, value in values(path):
        if not isinstance(value, list):
            yield place, value
        elif is_chat(value) and all(_named_session(message) is None for message in value):
            yield place, {"messages": value}
        else:
            for number, item in enumerate(value, start=1):
                row = {"messages": item} if isinstance(item, list) and is_chat(item) else item
                yield f"{place} row {number}".strip(), row


def _named_session(row: Json) -> str | None:
    named = next((row[name] for name in _SESSION if row.get(name) not in (None, "")), None)
    return None if named is None else str(named)


def _session(row: Json, place: str) -> str:
    named = _named_session(row)
    if named is not None:
        return named
    return place if place and not _is_message(row) else "conversation"


def _teams(path: Path) -> dict[str, str]:
    """Session -> the session at the top of its team. Memory holds only ids, and none if no session has a parent."""
    parents: dict[str, str] = {}
    for place, row in _rows(path):
        if isinstance(row, Mapping) and row.get("parent_call_id"):
            parents[_session(row, place)] = as_text(row["parent_call_id"])
    if not parents:
        return {}
    callers: dict[str, str] = {}
    wanted = set(parents.values())
    for place, row in _rows(path):
        if is_chat(row):
            messages = row["messages"] if isinstance(row.get("messages"), list) else [row]
            for message in messages:
                for call in as_calls(message.get("tool_calls")):
                    if call.id in wanted:
                        callers.setdefault(call.id, _session(row, place))
    tops = {}
    for session in parents:
        top, seen = session, {session}
        while top in parents and (above := callers.get(parents[top])) is not None and above not in seen:
            seen.add(above)
            top = above
        tops[session] = top
    return tops


def from_sessions(sessions: list[Session], file: str = "", place: str = "") -> TeamRun:
    known = {call.id for session in sessions for m in session.messages for call in as_calls(m.get("tool_calls"))}
    below: dict[str, list[Session]] = {}
    tops, left_out = [], []
    for session in sessions:
        if session.parent_call and session.parent_call in known:
            below.setdefault(session.parent_call, []).append(session)
        else:
            tops.append(session)
    if not tops:
        raise TraceError("its sessions call each other in a circle")
    first = tops[0]
    if first.parent_call:
        left_out.append(LeftOut(what="its caller", reason="no call in the file has that id", place=first.parent_call))
    root = _Conversation(first, below, left_out, 0).built()
    about = first.about
    question = as_text(about.get("question")) or root.request
    if not question:
        raise TraceError("no message of a user says what the task was")
    for session in (session for calls in below.values() for session in calls):
        left_out.append(LeftOut(what=f"session {session.id}", reason="its call was not reached", place=session.id))
    identity = about.get("task_id") or about.get("id")
    task = as_task(question, about.get("answer"), None if identity is None else str(identity))
    source = Source(format=FORMAT.name, file=file, place=place)
    return team_run(task, root, source, left_out, reported_usage=as_usage(about.get("usage")))


class _Conversation:
    """Reads one session; the sessions of sub-agents are spliced in at their calls."""

    def __init__(self, session: Session, below: dict[str, list[Session]], left_out: list[LeftOut], depth: int) -> None:
        if depth > MOST_DEEP:
            raise TraceError(f"sessions are nested more than {MOST_DEEP} deep")
        self.session, self._below, self._left_out, self._depth = session, below, left_out, depth
        self._system: list[str] = []
        self._request = ""
        self._answer: str | None = None
        self._reports: dict[str, tuple[str, ...]] = {}
        """By call, the runs of sub-agents that it started."""
        self._finishing: set[str] = set()
        self._guests = 0

    def built(self) -> AgentRun:
        speakers = {_speaker(m): None for m in self.session.messages if _role(m) == "assistant"}
        speakers.pop("", None)
        host = self.session.agent or next(iter(speakers), "") or "agent"
        events: list[Event] = []
        guest: tuple[str, list[Event]] | None = None
        for message in self.session.messages:
            speaker = _speaker(message)
            made = self._message(message)
            if _role(message) == "assistant":
                if speaker and speaker != host and len(speakers) > 1:
                    if guest is None or guest[0] != speaker:
                        self._close(guest, events)
                        guest = (speaker, [])
                elif speaker or len(speakers) < 2:
                    self._close(guest, events)
                    guest = None
            (guest[1] if guest else events).extend(made)
        self._close(guest, events)
        answer = self._answer
        if answer is None:
            last = next((m for m in reversed(self.session.messages) if _role(m) == "assistant"), {})
            answer = as_text(last.get("content")).strip() or None if not last.get("tool_calls") else None
        definitions = definitions_in(self.session.about.get("tools"))
        return AgentRun(
            id=self.session.id, agent=host, tools=tuple(definitions), system="\n\n".join(self._system),
            request=self._request, events=tuple(events), answer=answer,
            meta={"tool_definitions": definitions} if definitions else {},
        )  # fmt: skip

    def _close(self, guest: tuple[str, list[Event]] | None, events: list[Event]) -> None:
        """Turns of another agent in the same conversation are a separate run."""
        if guest is None:
            return
        self._guests += 1
        answer = next((e.text for e in reversed(guest[1]) if isinstance(e, ModelCall) and not e.calls), None)
        run = AgentRun(id=f"{self.session.id}/{self._guests}", agent=guest[0], events=tuple(guest[1]), answer=answer)
        events.append(SubRun(run=run))

    def _message(self, message: Json) -> list[Event]:
        role, text = _role(message), as_text(message.get("content"))
        time = as_time(message.get("timestamp") or message.get("created_at"))
        if role == "system":
            if text not in self._system:
                self._system.append(text)
            return []
        if role == "tool":
            identity = as_text(message.get("tool_call_id") or message.get("call_id") or message.get("id"))
            if identity in self._finishing:
                return []
            failed = message.get("status") == "error" or bool(message.get("is_error"))
            reports = self._reports.get(identity, ())
            ids = (identity,) if identity else ()
            return [ToolResult(time=time, call_ids=ids, text=text, ok=not failed, report_of=reports)]
        if role != "assistant":
            if not self._request:
                self._request = text
                return []
            return [Note(time=time, role=role, text=text)]
        return self._turn(message, text, time)

    def _turn(self, message: Json, text: str, time: float | None) -> list[Event]:
        prefix = f"call_{len(self._reports) + 1}"
        calls = as_calls(message.get("tool_calls"), prefix) or as_calls([message.get("function_call")], prefix)
        finishing = [call for call in calls if call.name in FINISHING]
        if finishing:
            self._finishing |= {call.id for call in finishing}
            self._answer = handed_in(finishing[-1]) or text
        subs: list[Event] = []
        kept: list[ToolCall] = []
        for call in calls:
            if call in finishing:
                continue
            runs = [
                _Conversation(session, self._below, self._left_out, self._depth + 1).built()
                for session in self._below.pop(call.id, ())
            ]
            self._reports[call.id] = tuple(run.id for run in runs)
            subs += [SubRun(call_id=call.id, run=_asked(run, call)) for run in runs]
            kept.append(call.model_copy(update={"agent": True}) if runs else call)
        apart = as_text(message.get("reasoning_content") or message.get("reasoning"))
        thought = apart or as_thought(message.get("content"))
        model = as_text(message.get("model") or self.session.about.get("model")) or None
        usage = as_usage(message.get("usage") or message.get("usage_metadata"))
        purpose = Purpose.ANSWER if finishing else Purpose.ACT
        turn = ModelCall(
            time=time, purpose=purpose, thought=thought, text=text, calls=tuple(kept), model=model, usage=usage
        )
        return [turn, *subs]


def _asked(run: AgentRun, call: ToolCall) -> AgentRun:
    """Its own first message may be wrapped; the call's argument is what was asked."""
    names = ("task", "query", "question", "request", "input")
    asked = next((call.arguments[name] for name in names if name in call.arguments), None)
    return run.model_copy(update={"request": asked}) if isinstance(asked, str) and asked else run


def _role(message: Json) -> str:
    role = as_text(message.get("role") or message.get("type"))
    return ROLES.get(role, role)


def _speaker(message: Json) -> str:
    return as_text(message.get("agent") or message.get("agent_name") or message.get("name"))


FORMAT: Final = TraceFormat("chat", "chat messages", is_chat, read_file=read_chat)
