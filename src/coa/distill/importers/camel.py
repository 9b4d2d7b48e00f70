"""The log of model calls that CAMEL writes with `CAMEL_MODEL_LOG_ENABLED=true`, one file for each call.

    camel_logs/AGENT_ID/conv_20260131_101500_123456.json      {"agent_id", "request": {"messages"}, "response": {...}}

The files below one folder are read together, as the calls of a recording gateway are: the histories show who is who and
who asked whom. The agent's id in a file is not used, because CAMEL keeps the id of an agent that worked inside a tool
for the calls of the agent that called the tool.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from coa.distill.importers.calls.log import MARK, CallLog
from coa.distill.importers.calls.reader import runs_in
from coa.distill.importers.content import as_text, as_time, at
from coa.distill.importers.json_files import Bad, values
from coa.distill.importers.trace_format import TraceFormat
from coa.distill.team_run import Skipped, TeamRun

_NAME: Final = re.compile(r"conv_\d{8}_\d{6}_\d+\.json(\.gz)?")


def is_camel(row: object) -> bool:
    return isinstance(row, Mapping) and "request_timestamp" in row and isinstance(at(row, "request", "messages"), list)


def read_camel(files: Sequence[Path]) -> Iterator[TeamRun | Skipped]:
    folder = str(files[0].parent.parent if len(files) > 1 else files[0])
    rows: list[tuple[float, int, dict[str, Any]]] = []
    for number, file in enumerate(sorted(files, key=lambda file: file.name)):
        for place, value in values(file):
            if is_camel(value):
                rows += [(as_time(row["time"]) or 0.0, number, row) for row in _records(value, str(number))]
            else:
                reason = value.reason if isinstance(value, Bad) else "it is no log of a model call"
                yield Skipped(file=str(file), place=place, reason=reason)
    rows.sort(key=lambda row: row[:2])
    log = CallLog(Path(folder), [("", row) for _, _, row in rows])
    for item in runs_in(log):
        if isinstance(item, TeamRun):
            item = item.model_copy(update={"source": item.source.model_copy(update={"format": FORMAT.name})})
        yield item


def _records(value: Mapping[str, Any], identity: str) -> Iterator[dict[str, Any]]:
    """The call as a gateway would have recorded it."""
    settings = at(value, "request", "model_config_dict")
    body = {**(settings if isinstance(settings, Mapping) else {}), "messages": value["request"]["messages"]}
    about = {MARK: 1, "id": identity}
    body.setdefault("model", as_text(value.get("model")) or None)
    yield {**about, "event": "request", "time": value["request_timestamp"], "protocol": "chat", "body": body}
    if "response" in value:
        reply = value["response"]
        error = None if isinstance(reply, Mapping) else "CAMEL logs no reply that was streamed"
        row = {**about, "event": "response", "time": value.get("response_timestamp") or value["request_timestamp"]}
        yield {**row, "status": 200, "error": error, "body": reply if error is None else None}


def _read_one(path: Path) -> Iterator[TeamRun | Skipped]:
    return read_camel([path])


FORMAT: Final = TraceFormat(
    "camel", "model logs of CAMEL", is_camel, read_file=_read_one, file_names=_NAME, read_files=read_camel
)
