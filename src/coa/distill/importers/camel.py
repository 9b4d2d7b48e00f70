"""What CAMEL records: a log of model calls (`CAMEL_MODEL_LOG_ENABLED=true`), and memories (`agent.save_memory(path)`).

    camel_logs/AGENT_ID/conv_20260131_101500_123456.json      {"agent_id", "request": {"messages"}, "response": {...}}
    memory.jsonl                                              {"message": {...}, "role_at_backend", "agent_id"} per line

Both are read as the calls of a recording gateway are: the histories show who is who and who asked whom. The log has a
file for each call, and the files below one folder are read together. Their agent's id is not used, because CAMEL keeps
the id of an agent that worked inside a tool for the calls of the agent that called the tool. Memories of several agents
may be saved to one file; each message of an assistant is a call whose request is what was in its memory before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from coa.distill.importers.calls.log import MARK, CallRecords
from coa.distill.importers.calls.reader import runs_in
from coa.distill.importers.content import as_text, as_time, at, dumped
from coa.distill.importers.json_files import Bad, values
from coa.distill.importers.trace_format import TraceFormat
from coa.distill.team_run import Skipped, TeamRun

Json = Mapping[str, Any]
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_NAME: Final = re.compile(r"conv_\d{8}_\d{6}_\d+\.json(\.gz)?")


def is_camel(row: object) -> bool:
    return _is_call(row) or _is_memory(row)


def _is_call(row: object) -> bool:
    return isinstance(row, Mapping) and "request_timestamp" in row and isinstance(at(row, "request", "messages"), list)


def _is_memory(row: object) -> bool:
    return isinstance(row, Mapping) and "role_at_backend" in row and isinstance(row.get("message"), Mapping)


def read_camel(files: Sequence[Path]) -> Iterator[TeamRun | Skipped]:
    source = files[0].parent.parent if len(files) > 1 else files[0]
    found: list[Json] = []
    for file in sorted(files, key=lambda file: file.name):
        memories: dict[str, list[Json]] = {}
        for place, value in values(file):
            if _is_call(value):
                found += _calls(value, f"c{len(found)}")
            elif _is_memory(value):
                memories.setdefault(as_text(value.get("agent_id")), []).append(value)
            else:
                reason = (
                    value.reason if isinstance(value, Bad) else "it is neither a model call nor a message in a memory"
                )
                yield Skipped(file=str(file), place=place, reason=reason)
        for agent, messages in memories.items():
            found += _remembered(agent, messages, f"m{len(found)}")
    ordered = sorted(found, key=lambda row: as_time(row["time"]) or 0.0)
    for item in runs_in(CallRecords(source, [("", row) for row in ordered])):
        if isinstance(item, TeamRun):
            item = item.model_copy(update={"source": item.source.model_copy(update={"format": FORMAT.name})})
        yield item


def _calls(value: Json, identity: str) -> Iterator[Json]:
    """A call of the log as a gateway would have recorded it."""
    settings = at(value, "request", "model_config_dict")
    body = {**(settings if isinstance(settings, Mapping) else {}), "messages": value["request"]["messages"]}
    body.setdefault("model", as_text(value.get("model")) or None)
    began = value["request_timestamp"]
    yield {MARK: 1, "id": identity, "event": "request", "time": began, "protocol": "chat", "body": body}
    if "response" in value:
        reply, ended = value["response"], value.get("response_timestamp") or began
        streamed = None if isinstance(reply, Mapping) else "CAMEL logs no reply that was streamed"
        yield {MARK: 1, "id": identity, "event": "response", "time": ended, "error": streamed, "body": reply}


def _remembered(agent: str, records: list[Json], identity: str) -> Iterator[Json]:
    """The calls that left the messages in an agent's memory."""
    named = None if _UUID.fullmatch(agent) else agent or None
    before: list[dict[str, Any]] = []
    time: Any = None
    for number, record in enumerate(sorted(records, key=lambda row: as_time(row.get("timestamp")) or 0.0)):
        message, given = _message(record), record.get("timestamp")
        if message["role"] == "assistant":
            about = {MARK: 1, "id": f"{identity}.{number}", "protocol": "chat", "agent": named}
            yield {
                **about,
                "event": "request",
                "time": time if time is not None else given,
                "body": {"messages": before},
            }
            yield {**about, "event": "response", "time": given, "body": {"choices": [{"message": message}]}}
        before, time = [*before, message], given


def _message(record: Json) -> dict[str, Any]:
    inner, role = record["message"], as_text(record["role_at_backend"])
    if role in ("function", "tool"):
        return {"role": "tool", "tool_call_id": inner.get("tool_call_id"), "content": as_text(inner.get("result"))}
    found = {name: inner[name] for name in ("content", "tool_calls", "reasoning_content") if inner.get(name)}
    if inner.get("func_name"):  # a call as a message of its own
        function = {"name": inner["func_name"], "arguments": dumped(inner.get("args") or {})}
        found["tool_calls"] = [{"id": inner.get("tool_call_id"), "type": "function", "function": function}]
    return {"role": role, **found}


def _read_one(path: Path) -> Iterator[TeamRun | Skipped]:
    return read_camel([path])


FORMAT: Final = TraceFormat(
    "camel", "model logs and memories of CAMEL", is_camel, read_file=_read_one, file_names=_NAME, read_files=read_camel
)
