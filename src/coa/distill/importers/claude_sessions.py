"""Sessions of Claude Code and of the Claude Agent SDK, as JSONL.

Claude Code keeps a session as `SESSION.jsonl` in a folder of projects (`~/.claude/projects/*/`), and each sub-agent in
`SESSION/subagents/agent-ID.jsonl` with its name and the call that started it in `agent-ID.meta.json`. Older versions
wrote sub-agents beside the session (`agent-ID.jsonl`) or into it (`isSidechain`). What `claude --output-format
stream-json` prints, which is what the SDK reads, leaves out what sub-agents say, so it is refused.

A line holds one block of a reply; lines with the same message id are one reply, whose tokens count once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from coa.distill.importers.calls.naming import prompt
from coa.distill.importers.content import MOST_DEEP, as_number, as_task, as_text, as_time, as_usage, at, last_answer
from coa.distill.importers.content import team_run as made_of
from coa.distill.importers.json_files import FAULTS, Bad, reason_of, values
from coa.distill.importers.messages import Said, definitions_in, message
from coa.distill.importers.trace_format import TraceFormat
from coa.distill.team_run import (
    AgentRun,
    Event,
    LeftOut,
    ModelCall,
    Note,
    Skipped,
    Source,
    SubRun,
    TeamRun,
    ToolCall,
    ToolResult,
)
from coa.errors import TraceError
from coa.trajectory.types import Usage

Json = Mapping[str, Any]
_MAIN: Final = "claude"
"""The agent that the user speaks to, where its system prompt does not name it. Sub-agents have names of their own."""
_ASKING: Final = ("Agent", "Task")
"""The tool that starts a sub-agent; older versions call it `Task`."""

_STREAM: Final = (
    "the stream of Claude Code leaves out what sub-agents say; its session in ~/.claude/projects has everything"
)


def is_session(value: object) -> bool:
    """A line of a session or of the stream, or the description of a sub-agent."""
    if not isinstance(value, Mapping) or "messages" in value:
        return False
    if "agentType" in value and "message" not in value:
        return True
    named = isinstance(value.get("sessionId"), str) or _streamed(value)
    return named and isinstance(value.get("type"), str) and "role" not in value


def _streamed(line: Json) -> bool:
    return "session_id" in line and "uuid" in line


def read_session(path: Path) -> Iterator[TeamRun | Skipped]:
    if path.name.endswith(".meta.json") or _session_of(path) is not None:
        return  # it is read with its session
    sessions: dict[str, list[Json]] = {}
    bad: list[Bad] = []
    for place, value in values(path):
        if isinstance(value, Mapping):
            if _streamed(value):
                yield Skipped(file=str(path), place=place, reason=_STREAM)
                return
            sessions.setdefault(as_text(value.get("sessionId")), []).append(value)
        else:
            bad.append(value if isinstance(value, Bad) else Bad(place, "it is not a line of a session"))
    shared = sessions.pop("", [])
    for session, lines in sessions.items() or {"": shared}.items():
        try:
            if any(_speaks(line) for line in lines):
                yield from_lines(lines, _beside(path, session, bad), str(path), session)
            elif len(sessions) == 1:
                yield Skipped(file=str(path), place=session, reason="a session without any message")
        except (TraceError, *FAULTS) as error:  # a damaged session does not affect the others
            yield Skipped(file=str(path), place=session, reason=reason_of(error))
    for item in bad:
        yield Skipped(file=str(path), place=item.place, reason=item.reason)


def _session_of(path: Path) -> Path | None:
    """The file of the session that the file of a sub-agent belongs to, where it is there."""
    if not path.name.startswith("agent-"):
        return None
    if path.parent.name == "subagents":
        found = path.parent.parent.with_name(path.parent.parent.name + ".jsonl")
        return found if found.is_file() else None
    line = next((value for _, value in values(path) if isinstance(value, Mapping)), {})
    found = path.with_name(f"{as_text(line.get('sessionId'))}.jsonl")
    return found if found.is_file() and found != path else None


def _beside(path: Path, session: str, bad: list[Bad]) -> list[_Conversation]:
    """The sub-agents that are kept in files of their own."""
    found = []
    for file in (*sorted((path.with_suffix("") / "subagents").glob("agent-*.jsonl")), *sorted(_siblings(path))):
        lines = []
        for _, value in values(file):
            if isinstance(value, Mapping):
                lines.append(value)
            elif isinstance(value, Bad):
                bad.append(Bad(f"{file.name} {value.place}".strip(), value.reason))
        if lines and as_text(lines[0].get("sessionId")) == session:
            about = file.with_suffix(".meta.json")
            described: object = next((value for _, value in values(about)), None) if about.is_file() else None
            identity = file.stem.removeprefix("agent-")
            name, call = (as_text(at(described, key)) for key in ("agentType", "toolUseId"))
            found.append(_Conversation(identity, lines, name, call))
    return found


def _siblings(path: Path) -> Iterable[Path]:
    return (file for file in path.parent.glob("agent-*.jsonl") if file != path)


@dataclass
class _Conversation:
    """The lines of one agent."""

    id: str
    lines: list[Json] = field(default_factory=list)
    name: str = ""
    call: str = ""
    """Id of the call that started it."""

    @property
    def request(self) -> str:
        return next((_said(line).text for line in self.lines if _speaks(line) and line["type"] == "user"), "")


def _speaks(line: Json) -> bool:
    return line.get("type") in ("user", "assistant") and isinstance(line.get("message"), Mapping)


def _said(line: Json) -> Said:
    return message(line["message"])


def from_lines(lines: list[Json], beside: Iterable[_Conversation] = (), file: str = "", place: str = "") -> TeamRun:
    left_out: list[LeftOut] = []
    main, inside = _apart(lines)
    if len(inside) == 1 and not any(map(_speaks, main.lines)):
        main, inside = inside[0], []  # the file of a sub-agent whose session is not there
    team = _Team([*beside, *inside], left_out)
    team.link([main, *team.waiting])
    root = team.run(main, _MAIN, 0)
    named = prompt(root.system).name
    root = root.model_copy(update={"agent": named or _MAIN})
    if not root.request:
        raise TraceError("no message of a user says what the task was")
    for other in team.waiting:
        left_out.append(LeftOut(what=f"the sub-agent {other.name or other.id}", reason="no call started it"))
    costs = (as_number(line.get("totalCostUSD")) for line in reversed(lines) if line.get("type") == "cost-state")
    reported = Usage(cost=cost) if (cost := next(costs, None)) is not None else None
    last = next((event for event in reversed(root.events) if isinstance(event, ModelCall)), None)
    error = last.error if last is not None else None
    source = Source(format=FORMAT.name, file=file, place=place)
    identity = place or as_text(next((line.get("uuid") for line in main.lines), None))
    task = as_task(root.request, None, identity or None)
    meta = _inferred(root, bool(named), team.guessed)
    return made_of(task, root, source, left_out, error=error, reported_usage=reported, meta=meta)


def _inferred(root: AgentRun, named: bool, links: int) -> dict[str, Any]:
    """What the session does not say: the name of its main agent, and in old files who started a sub-agent."""
    if not named and not links:
        return {}
    runs = len(list(root.walk()))
    notes = ["the name of the main agent is from its system prompt"] if named else []
    notes += ["who started a sub-agent is inferred from its prompt"] if links else []
    return {"inferred": {"agents": int(named), "links": links, "of_agents": runs, "of_links": runs - 1, "notes": notes}}


def _apart(lines: list[Json]) -> tuple[_Conversation, list[_Conversation]]:
    """The main agent's lines, and those of sub-agents that are kept in the same file."""
    main, others = _Conversation(_MAIN), dict[str, _Conversation]()
    chains: dict[str, str] = {}
    for line in lines:
        identity = as_text(line.get("uuid"))
        key = as_text(line.get("agentId"))
        if not key and line.get("isSidechain"):
            parent = as_text(line.get("parentUuid"))
            key = chains[identity] = chains.get(parent, f"chain {identity}")
        if not key:
            main.lines.append(line)
            continue
        others.setdefault(key, _Conversation(key)).lines.append(line)
    return main, list(others.values())


@dataclass
class _Team:
    waiting: list[_Conversation]
    """Sub-agents that no call has been found for."""
    left_out: list[LeftOut]
    guessed: int = 0
    """Number of sub-agents whose call was found by their prompt."""

    def link(self, conversations: list[_Conversation]) -> None:
        """Who was started by which call: results name the agent, and old files have only its prompt."""
        by_id = {other.id: other for other in self.waiting}
        prompts: dict[str, list[str]] = {}
        for line in (line for one in conversations for line in one.lines if _speaks(line)):
            said, result = _said(line), line.get("toolUseResult")
            agent = by_id.get(as_text(at(result, "agentId")))
            if agent is not None and said.answers:
                agent.call = agent.call or said.answers[0][0]
                agent.name = agent.name or as_text(at(result, "agentType"))
            for call in said.calls:
                if call.name in _ASKING:
                    prompts.setdefault(as_text(call.arguments.get("prompt")).strip(), []).append(call.id)
        taken = {other.call for other in self.waiting if other.call}
        for other in self.waiting:
            if not other.call:
                free = [call for call in prompts.get(other.request.strip(), ()) if call not in taken]
                other.call = free[0] if free else ""
                self.guessed += bool(free)
                taken.add(other.call)

    def run(self, conversation: _Conversation, name: str, depth: int) -> AgentRun:
        if depth > MOST_DEEP:
            raise TraceError(f"sub-agents are nested more than {MOST_DEEP} deep")
        reading = _Reading(self, name, depth)
        for line in self._current(conversation):
            reading.line(line)
        reading.close()
        return reading.built(conversation.id)

    def _current(self, conversation: _Conversation) -> Iterator[Json]:
        """The lines without the turns that the user took back: a later prompt at the same place replaces an earlier."""
        latest: dict[str, str] = {}
        for line in conversation.lines:
            if _prompts(line) and (parent := as_text(line.get("parentUuid"))):
                latest[parent] = as_text(line.get("uuid"))
        gone: set[str] = set()
        for line in conversation.lines:
            identity, parent = as_text(line.get("uuid")), as_text(line.get("parentUuid"))
            replaced = _prompts(line) and parent in latest and latest[parent] != identity
            if identity and (parent in gone or replaced):
                gone.add(identity)
                if replaced:
                    self.left_out.append(LeftOut(what="a turn", reason="the user took it back", place=identity))
            else:
                yield line


def _prompts(line: Json) -> bool:
    """Whether it is what a user wrote."""
    return _speaks(line) and line["type"] == "user" and not line.get("isMeta") and not _said(line).answers


class _Reading:
    """The run of one agent while its lines are read."""

    def __init__(self, team: _Team, name: str, depth: int) -> None:
        self.team, self.name, self._depth = team, name, depth
        self.events: list[Event] = []
        self.system = self.request = ""
        self.definitions: dict[str, Any] = {}
        self._reply: list[Json] = []
        self._results: list[Event] = []
        """Of calls in the reply that is being read: some come before its last block."""
        self._reports: dict[str, tuple[str, ...]] = {}
        self._compacted = False

    def line(self, line: Json) -> None:
        shape = line.get("attachment") or line.get("shape")
        if isinstance(shape, Mapping):
            self._described(shape)
        self._compacted |= line.get("subtype") == "compact_boundary"
        if not _speaks(line):
            return
        if line["type"] == "assistant":
            if self._reply and at(self._reply[0], "message", "id") != line["message"].get("id"):
                self.close()
            self._reply.append(line)
            return
        said, time = _said(line), as_time(line.get("timestamp"))
        answers = [
            ToolResult(time=time, call_ids=(identity,), text=text, ok=identity not in said.failed)
            for identity, text in said.answers
        ]
        if answers:
            self._results += answers
            return
        self.close()
        if self.request or line.get("isMeta"):
            self.events.append(Note(time=time, role="user", text=said.text))
        else:
            self.request = said.text

    def _described(self, shape: Json) -> None:
        prompt = shape.get("systemPrompt") or shape.get("system")
        if prompt and not self.system:
            self.system = as_text(prompt)
        self.definitions |= definitions_in(shape.get("tools"))

    def close(self) -> None:
        """The reply is complete: its blocks become one model call."""
        lines, self._reply = self._reply, []
        results, self._results = self._results, []
        if lines:
            self._model_call(lines)
        for result in results:
            if isinstance(result, ToolResult):
                reports = tuple(run for call in result.call_ids for run in self._reports.get(call, ()))
                self.events.append(result.model_copy(update={"report_of": reports}))

    def _model_call(self, lines: list[Json]) -> None:
        said, last = [_said(line) for line in lines], lines[-1]
        text, thought = (
            "\n".join(filter(None, parts)) for parts in zip(*((s.text, s.thought) for s in said), strict=True)
        )
        calls = tuple(call for one in said for call in one.calls)
        failed = bool(last.get("isApiErrorMessage")) or bool(last.get("error"))
        started: list[Event] = []
        asked = []
        for call in calls:
            runs = self._started(call)
            self._reports[call.id] = tuple(run.id for run in runs)
            started += [SubRun(call_id=call.id, run=run) for run in runs]
            agent = bool(runs) or (call.name in _ASKING and "subagent_type" in call.arguments)
            asked.append(call.model_copy(update={"agent": agent}))
        model = as_text(at(last, "message", "model")) or None
        self.events += [
            ModelCall(
                time=as_time(lines[0].get("timestamp")), rewritten=self._compacted, thought=thought, text=text,
                calls=tuple(asked), model=model, usage=as_usage(at(last, "message", "usage")),
                error=text or "the request failed" if failed else None,
            ),
            *started,
        ]  # fmt: skip
        self._compacted = False

    def _started(self, call: ToolCall) -> list[AgentRun]:
        begun = [other for other in self.team.waiting if other.call == call.id]
        self.team.waiting = [other for other in self.team.waiting if other not in begun]
        named = as_text(call.arguments.get("subagent_type")) or call.name
        return [self.team.run(other, other.name or named, self._depth + 1) for other in begun]

    def built(self, identity: str) -> AgentRun:
        return AgentRun(
            id=identity, agent=self.name, system=self.system, request=self.request, events=tuple(self.events),
            tools=tuple(self.definitions), answer=last_answer(self.events),
            meta={"tool_definitions": self.definitions} if self.definitions else {},
        )  # fmt: skip


FORMAT: Final = TraceFormat("claude", "sessions of Claude Code", is_session, read_file=read_session)
