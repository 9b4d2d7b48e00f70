"""Call records as the gateway writes them, made by hand: a list of lines that grows call by call."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from coa.distill.importers.calls.reader import read_calls
from coa.distill.team_run import AgentRun, Skipped, SubRun, TeamRun

Json = dict[str, Any]


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def result(call: str, text: str) -> Json:
    return {"role": "tool", "tool_call_id": call, "content": text}


def call(identity: str, name: str, **arguments: Any) -> Json:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def function(name: str, *properties: str) -> Json:
    schema = {"type": "object", "properties": {key: {"type": "string"} for key in properties}}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


class CallRecords:
    """The lines of one file."""

    def __init__(self, prefix: str = "c", **given: Any) -> None:
        self.lines: list[Json] = []
        self._numbers = (f"{prefix}{number}" for number in itertools.count(1))
        self._given = given

    def line(self, event: str, **fields: Any) -> None:
        self.lines.append({"coa_record": 1, "event": event, "time": 1_700_000_000 + len(self.lines), **fields})

    def request(self, body: Json, protocol: str = "chat", **given: Any) -> str:
        identity = next(self._numbers)
        fields = {"run": None, "agent": None, "given_by": None, "trace": None, **self._given, **given}
        self.line(
            "request",
            id=identity,
            protocol=protocol,
            path=f"/v1/{protocol}",
            headers={},
            body=json.loads(json.dumps(body)),
            **fields,
        )
        return identity

    def respond(self, identity: str, body: Any, *, status: int | None = 200, **more: Any) -> None:
        fields = {"seconds": 0.5, "stream": False, "complete": True, "error": None, **more}
        self.line("response", id=identity, status=status, body=body, **fields)

    def ask(self, system: str, messages: Sequence[Json], tools: Iterable[Json] = (), **given: Any) -> str:
        """A request of Chat Completions."""
        head = [{"role": "system", "content": system}] if system else []
        body = {"model": "m", "messages": [*head, *messages], "tools": list(tools)}
        return self.request(body, **given)

    def reply(self, identity: str, text: str = "", *calls: Json, thought: str = "", tokens: int = 10) -> Json:
        """The response to it; returns the message that later requests repeat."""
        message: Json = {"role": "assistant", "content": text or None}
        message |= {"tool_calls": list(calls)} if calls else {}
        shown = {**message, "reasoning_content": thought} if thought else message
        usage = {"prompt_tokens": tokens, "completion_tokens": 2}
        self.respond(identity, {"id": f"r-{identity}", "model": "m", "choices": [{"message": shown}], "usage": usage})
        return message

    def chat(self, system: str, messages: Sequence[Json], text: str = "", *calls: Json, **more: Any) -> Json:
        """A whole call of Chat Completions."""
        thought, tokens = more.pop("thought", ""), more.pop("tokens", 10)
        return self.reply(self.ask(system, messages, **more), text, *calls, thought=thought, tokens=tokens)

    def write(self, path: Path) -> Path:
        path.write_text("".join(json.dumps(line) + "\n" for line in self.lines), encoding="utf-8")
        return path

    def runs(self, folder: Path) -> list[TeamRun]:
        """The team runs of the lines, of which none may be unreadable."""
        found = list(read_calls(self.write(folder / "session.calls.jsonl")))
        skipped = [item for item in found if isinstance(item, Skipped)]
        assert not skipped, skipped
        return [item for item in found if isinstance(item, TeamRun)]


def inferred(run: TeamRun) -> Json:
    """What the importer says about how sure it is."""
    found = run.meta["inferred"]
    assert isinstance(found, dict)
    return dict(found)


def outline(run: AgentRun, depth: int = 0) -> list[str]:
    """A run as one line for each event, indented by the depth of the agent."""
    space = "  " * depth
    lines = [f"{space}{run.agent} <- {run.request}"]
    for event in run.events:
        match event.kind:
            case "model_call":
                calls = ", ".join(
                    f"{'@' if c.agent else ''}{c.name}{json.dumps(dict(c.arguments))}" for c in event.calls
                )
                parts = [f"({event.thought})" if event.thought else "", event.text, calls]
                parts.append(f"!{event.error}" if event.error else "")
                lines.append(f"{space}  says {' | '.join(filter(None, parts))}")
            case "tool_result":
                kind = "report" if event.report_of else "result"
                lines.append(f"{space}  {kind if event.ok else 'failed ' + kind}: {event.text}")
            case "sub_run":
                assert isinstance(event, SubRun)
                lines += outline(event.run, depth + 1)
            case "note":
                lines.append(f"{space}  {event.role}: {event.text}")
    return [*lines, f"{space}-> {run.answer}"]
