"""Traces as MLflow and Langfuse export them.

MLflow: `trace.to_json()`, `trace.to_dict()`, and rows of `mlflow.search_traces()`, which hold the trace as a text.
Langfuse: observations as the public API lists them (`{"data": [...]}`), a trace with its `observations`, or a list of
observations, such as an export from its pages. What their SDKs send over OpenTelemetry is read as spans.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from coa.distill.importers.content import as_text, as_time, at, loaded, mappings
from coa.distill.importers.json_files import FAULTS, Bad, grouped, reason_of, values
from coa.distill.importers.spans.observed import LANGFUSE, MLFLOW
from coa.distill.importers.spans.span import TraceSpan
from coa.distill.importers.spans.tree import runs_of
from coa.distill.importers.trace_format import TraceFormat
from coa.distill.team_run import Skipped, TeamRun
from coa.errors import TraceError

Json = Mapping[str, Any]
_NAMES: Final = {
    "input": "input", "output": "output", "level": "level", "statusMessage": "status_message",
    "model": "model.name", "usageDetails": "usage_details", "costDetails": "cost_details",
}  # fmt: skip


def is_mlflow(value: object) -> bool:
    trace = _mlflow_trace(value)
    return isinstance(at(trace, "info"), Mapping) and isinstance(at(trace, "data", "spans"), list)


def _mlflow_trace(value: object) -> object:
    return loaded(value["trace"]) if isinstance(value, Mapping) and "trace" in value else value


def read_mlflow_traces(path: Path) -> Iterator[TeamRun | Skipped]:
    for place, value in values(path):
        for row in value if isinstance(value, list) else [value]:
            if isinstance(row, Bad) or not is_mlflow(row):
                reason = row.reason if isinstance(row, Bad) else "it is not a trace of MLflow"
                yield Skipped(file=str(path), place=place, reason=reason)
                continue
            trace: Any = _mlflow_trace(row)
            name = as_text(at(trace, "info", "trace_id") or at(trace, "info", "request_id"))
            spans = (_mlflow_span(span, name) for span in mappings(trace["data"]["spans"]))
            yield from _runs(spans, path, name, MLFLOW_TRACES.name)


def _mlflow_span(row: Json, trace: str) -> TraceSpan:
    """A span of version 3, or of version 2 with its ids in `context`."""
    status = row.get("status")
    code = as_text(at(status, "code") or row.get("status_code"))
    began = row.get("start_time_unix_nano", row.get("start_time")) or 0
    attributes = row.get("attributes")
    return TraceSpan(
        trace=trace,
        id=as_text(row.get("span_id") or at(row, "context", "span_id")),
        parent=as_text(row.get("parent_span_id") or row.get("parent_id")) or None,
        name=as_text(row.get("name")),
        start=as_time(began) or 0.0,
        order=int(began) if str(began).isdigit() else 0,
        attributes={MLFLOW: "UNKNOWN", **(attributes if isinstance(attributes, Mapping) else {})},
        failed="ERROR" in code,
        error=as_text(at(status, "message") or row.get("status_message")),
    )


def is_langfuse(value: object) -> bool:
    rows = _observations(value)
    return bool(rows) and all("traceId" in row and "startTime" in row and "type" in row for row in rows[:3])


def _observations(value: object) -> list[Json]:
    if isinstance(value, Mapping):
        inner = value.get("observations", value.get("data"))
        if isinstance(inner, list):
            return [
                found for row in mappings(inner) for found in (_observations(row) if "observations" in row else [row])
            ]
        return [value]
    return [found for row in mappings(value) for found in _observations(row)]


def read_langfuse_export(path: Path) -> Iterator[TeamRun | Skipped]:
    bad: list[Bad] = []

    def spans() -> Iterator[tuple[str, TraceSpan]]:
        bad.clear()
        for place, value in values(path):
            if isinstance(value, Bad):
                bad.append(value)
            elif not is_langfuse(value):
                bad.append(Bad(place, "it holds no observations of Langfuse"))
            else:
                for row in _observations(value):
                    span = _langfuse_span(row)
                    yield span.trace, span

    for trace, group in grouped(spans):
        yield from _runs(iter(group), path, str(trace), LANGFUSE_EXPORT.name)
    for item in bad:
        yield Skipped(file=str(path), place=item.place, reason=item.reason)


def _langfuse_span(row: Json) -> TraceSpan:
    start = as_time(row.get("startTime")) or 0.0
    attributes = {f"langfuse.observation.{name}": row[key] for key, name in _NAMES.items() if row.get(key) is not None}
    return TraceSpan(
        trace=as_text(row.get("traceId")),
        id=as_text(row.get("id")),
        parent=as_text(row.get("parentObservationId")) or None,
        name=as_text(row.get("name")),
        start=start,
        order=round(start * 1e6) * 1000,
        attributes={LANGFUSE: as_text(row.get("type")), **attributes},
    )


def _runs(spans: Iterator[TraceSpan], path: Path, trace: str, kind: str) -> Iterator[TeamRun | Skipped]:
    found = list(spans)
    if not found:
        yield Skipped(file=str(path), place=f"trace {trace}", reason="a trace without any span")
        return
    try:
        yield from runs_of(found, str(path), kind)
    except (TraceError, *FAULTS) as error:  # a damaged trace does not affect the others
        yield Skipped(file=str(path), place=f"trace {trace}", reason=reason_of(error))


MLFLOW_TRACES: Final = TraceFormat(
    "mlflow", "traces of MLflow", is_mlflow, read_file=read_mlflow_traces
)  # fmt: skip
LANGFUSE_EXPORT: Final = TraceFormat(
    "langfuse", "exports of Langfuse", is_langfuse, read_file=read_langfuse_export, takes_lists=True
)  # fmt: skip
