"""Traces of the OpenAI Agents SDK as it exports them: `trace.export()` and `span.export()`, one object per line.

Spans of Chat Completions (`generation`) hold their messages. Those of Responses (`response`) hold only an id and token
counts when they are exported. The processor in `docs/guides/frameworks.md` adds `input` and `response`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from coa.distill.importers.content import as_arguments, as_text, as_time, as_usage, at, loaded
from coa.distill.importers.json_files import FAULTS, Bad, grouped, reason_of, values
from coa.distill.importers.messages import definitions_in, reply_in, said_in
from coa.distill.importers.spans.span import SpanReading, SpanRole, TraceSpan
from coa.distill.importers.spans.tree import runs_of
from coa.distill.importers.trace_format import TraceFormat
from coa.distill.team_run import Skipped, TeamRun
from coa.errors import TraceError
from coa.trajectory.types import Usage

Json = Mapping[str, Any]
_OBJECTS: Final = ("trace", "trace.span")
_EMPTY: Final = (
    "its `response` spans hold ids and token counts, but no messages; "
    "docs/guides/frameworks.md shows a processor that keeps them"
)


def is_export(value: object) -> bool:
    """A trace or a span; or a list of them, or what is sent to a tracing backend: `{"data": [...]}`."""
    rows = _rows(value)
    return bool(rows) and all(
        at(row, "object") in _OBJECTS and ("span_data" in row or "workflow_name" in row) for row in rows[:3]
    )


def _rows(value: object) -> list[Any]:
    if isinstance(value, Mapping) and isinstance(value.get("data"), list):
        return list(value["data"])
    return value if isinstance(value, list) else [value]


def read_export(path: Path) -> Iterator[TeamRun | Skipped]:
    bad: list[Bad] = []

    def spans() -> Iterator[tuple[str, Json]]:
        bad.clear()
        for place, value in values(path):
            for row in [value] if isinstance(value, Bad) else _rows(value):
                if isinstance(row, Bad):
                    bad.append(row)
                elif not is_export(row):
                    bad.append(Bad(place, "it is neither a trace nor a span"))
                elif row["object"] == "trace.span":
                    yield as_text(row.get("trace_id")), row

    for trace, rows in grouped(spans):
        try:
            yield from runs_of(map(_span, rows), str(path), FORMAT.name)
        except (TraceError, *FAULTS) as error:  # a damaged trace does not affect the others
            empty = not any(at(row, "span_data", name) for row in rows for name in ("input", "response"))
            reason = _EMPTY if empty else reason_of(error)
            yield Skipped(file=str(path), place=f"trace {trace}", reason=reason)
    for item in bad:
        yield Skipped(file=str(path), place=item.place, reason=item.reason)


def _span(row: Json) -> TraceSpan:
    data: Json = row["span_data"] if isinstance(row.get("span_data"), Mapping) else {}
    start = as_time(row.get("started_at")) or 0.0
    return TraceSpan(
        trace=as_text(row.get("trace_id")),
        id=as_text(row.get("id")),
        parent=as_text(row.get("parent_id")) or None,
        name=as_text(data.get("name") or data.get("type")),
        start=start,
        order=round(start * 1e6) * 1000,
        attributes={},
        reading=_reading(data, _error(row.get("error"))),
    )


def _error(value: object) -> str | None:
    details = at(value, "data", "error")
    return ": ".join(filter(None, (as_text(at(value, "message")), as_text(details)))) or None


def _reading(data: Json, error: str | None) -> SpanReading:
    match data.get("type"):
        case "agent":
            able = [*(data.get("tools") or ()), *(data.get("handoffs") or ())]
            return SpanReading(SpanRole.AGENT, as_text(data.get("name")), tools=tuple(map(str, able)), error=error)
        case "function":
            return SpanReading(
                SpanRole.TOOL, as_text(data.get("name")), arguments=as_arguments(data.get("input")),
                output=None if data.get("output") is None else as_text(data["output"]), error=error,
            )  # fmt: skip
        case "generation":
            return SpanReading(
                SpanRole.MODEL, heard=said_in(data.get("input")), said=reply_in(data.get("output")),
                usage=_usage(data.get("usage")), model=as_text(data.get("model")) or None, error=error,
            )  # fmt: skip
        case "response":
            body = loaded(data.get("response"))
            return SpanReading(
                SpanRole.MODEL, system=as_text(at(body, "instructions")), heard=said_in(data.get("input")),
                said=reply_in(body), definitions=definitions_in(at(body, "tools")),
                usage=_usage(data.get("usage") or at(body, "usage")),
                model=as_text(at(body, "model")) or None, error=error,
            )  # fmt: skip
    # Turns and tasks only contain what they enclose; a hand-off is in the reply that calls for it.
    return SpanReading(name=as_text(data.get("name") or data.get("type")))


def _usage(row: object) -> Usage | None:
    """None where the server did not count: the SDK then writes 0, as for streamed Chat Completions without usage."""
    usage = as_usage(row)
    return usage if usage is not None and usage.total_tokens else None


FORMAT: Final = TraceFormat(
    "openai_agents", "traces of the OpenAI Agents SDK", is_export, read_file=read_export, takes_lists=True
)
