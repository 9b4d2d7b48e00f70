"""One span, whether it came as OTLP-JSON or as the Python SDK's own JSON, and the way to it from a file's objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from coa.distill.importers.content import as_time
from coa.distill.importers.spans.reading import SpanReading

Json = Mapping[str, Any]


@dataclass(eq=False)
class TraceSpan:
    trace: str
    id: str
    parent: str | None
    name: str
    start: float
    order: int
    """Nanoseconds of the start, which a float cannot distinguish."""
    attributes: dict[str, Any]
    failed: bool = False
    error: str = ""
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    children: list[TraceSpan] = field(default_factory=list)
    reading: SpanReading | None = None
    """What it says, once read."""


def is_spans(value: object) -> bool:
    """An export request, a span of the SDK, or a list of either."""
    if isinstance(value, list):
        return bool(value) and is_spans(value[0])
    if not isinstance(value, Mapping):
        return False
    return isinstance(value.get("resourceSpans", value.get("resource_spans")), list) or _is_sdk_span(value)


def _is_sdk_span(row: Json) -> bool:
    context = row.get("context")
    return isinstance(context, Mapping) and "span_id" in context and "attributes" in row


def spans_in(value: Any) -> Iterator[TraceSpan]:
    """All spans of one JSON value. What is no span is passed over."""
    if isinstance(value, list):
        for item in value:
            yield from spans_in(item)
    elif isinstance(value, Mapping):
        if _is_sdk_span(value):
            yield _from_sdk(value)
            return
        for resource in _rows(value, "resourceSpans", "resource_spans"):
            for scope in _rows(resource, "scopeSpans", "scope_spans", "instrumentationLibrarySpans"):
                for row in _rows(scope, "spans"):
                    yield _from_otlp(row)


def _from_sdk(row: Json) -> TraceSpan:
    context: Json = row["context"]
    status = row.get("status")
    status = status if isinstance(status, Mapping) else {}
    attributes = row.get("attributes")
    return TraceSpan(
        trace=str(context.get("trace_id", "")).removeprefix("0x"),
        id=str(context["span_id"]).removeprefix("0x"),
        parent=str(row["parent_id"]).removeprefix("0x") if row.get("parent_id") else None,
        name=str(row.get("name") or ""),
        start=(start := as_time(row.get("start_time")) or 0.0),
        order=round(start * 1e6) * 1000,
        attributes=dict(attributes) if isinstance(attributes, Mapping) else {},
        failed=status.get("status_code") == "ERROR",
        error=str(status.get("description") or ""),
        events=[
            (str(event.get("name", "")), dict(event.get("attributes") or {}))
            for event in row.get("events") or ()
            if isinstance(event, Mapping)
        ],
    )


def _from_otlp(row: Json) -> TraceSpan:
    began = row.get("startTimeUnixNano", row.get("start_time_unix_nano")) or 0
    status = row.get("status")
    status = status if isinstance(status, Mapping) else {}
    return TraceSpan(
        trace=str(row.get("traceId", row.get("trace_id", ""))),
        id=str(row.get("spanId", row.get("span_id", ""))),
        parent=str(row.get("parentSpanId", row.get("parent_span_id")) or "") or None,
        name=str(row.get("name") or ""),
        start=as_time(began) or 0.0,
        order=int(began) if str(began).isdigit() else 0,
        attributes=_attributes(row.get("attributes")),
        failed=status.get("code") in (2, "2", "STATUS_CODE_ERROR"),
        error=str(status.get("message") or ""),
        events=[(str(event.get("name", "")), _attributes(event.get("attributes"))) for event in _rows(row, "events")],
    )


def _attributes(rows: object) -> dict[str, Any]:
    if not isinstance(rows, list):
        return {}
    return {str(row["key"]): _value(row.get("value")) for row in rows if isinstance(row, Mapping) and "key" in row}


def _value(value: object) -> Any:
    """OTLP names the type of each value: `{"stringValue": ...}`; 64-bit integers are strings."""
    if not isinstance(value, Mapping) or len(value) != 1:
        return value
    kind, inner = next(iter(value.items()))
    match kind:
        case "intValue":
            return int(inner) if str(inner).lstrip("-").isdecimal() else inner
        case "arrayValue":
            return [_value(item) for item in _rows_or_values(inner)]
        case "kvlistValue":
            return _attributes(inner.get("values") if isinstance(inner, Mapping) else None)
        case "stringValue" | "doubleValue" | "boolValue" | "bytesValue":
            return inner
    return value


def _rows_or_values(value: object) -> list[Any]:
    rows = value.get("values") if isinstance(value, Mapping) else value
    return rows if isinstance(rows, list) else []


def _rows(row: Json, *names: str) -> list[Json]:
    for name in names:
        if isinstance(row.get(name), list):
            return [item for item in row[name] if isinstance(item, Mapping)]
    return []
