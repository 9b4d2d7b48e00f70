"""Spans of OpenTelemetry and their two encodings: OTLP-JSON for files, protobuf for endpoints.

An export request is a resource (what sent it), a scope (the library that made the spans) and spans. Phoenix and MLflow
accept protobuf only, so endpoints get that. The messages are few and small, so they are encoded here: a field is its
number and wire type, then its content. Fields with their default value are left out, except inside of an attribute's
value, where the field that is present says of which type the value is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

from coa.trajectory.types import clean_text
from coa.version import __version__

SCOPE: Final = "coa"
Value = str | bool | int | float | Sequence[str]
_INT64: Final = 1 << 63
_VARINT, _FIXED64, _BYTES = 0, 1, 2
_ERROR: Final = 2


class SpanKind(IntEnum):
    INTERNAL = 1
    CLIENT = 3


@dataclass(frozen=True, slots=True)
class SpanEvent:
    name: str
    time_ns: int
    attributes: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Span:
    trace: bytes
    id: bytes
    parent: bytes | None
    name: str
    kind: SpanKind
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Value]
    events: Sequence[SpanEvent] = ()
    error: str | None = None
    """Why it failed, empty if the span does not say; None for a span that did not fail."""


def resource_spans(spans: Iterable[Span], service: str) -> dict[str, Any]:
    """One element of `resourceSpans` in OTLP-JSON."""
    scope = {"name": SCOPE, "version": __version__}
    return {
        "resource": {"attributes": _json_attributes(_resource(service))},
        "scopeSpans": [{"scope": scope, "spans": [_json_span(span) for span in spans]}],
    }


def to_protobuf(spans: Iterable[Span], service: str) -> bytes:
    """An `ExportTraceServiceRequest`."""
    resource = _attributes(1, _resource(service))
    scope = _text(1, SCOPE) + _text(2, __version__)
    scope_spans = _message(1, scope) + b"".join(_message(2, _span(span)) for span in spans)
    return _message(1, _message(1, resource) + _message(2, scope_spans))


def rejected(answer: bytes) -> tuple[int, str]:
    """The number of spans that an `ExportTraceServiceResponse` says were refused, and why. (0, "") if it says nothing,
    and for anything that is no such message, such as the JSON that some servers send."""
    try:
        partial = _fields(answer).get(1, b"")
        found = _fields(partial) if isinstance(partial, bytes) else {}
    except (IndexError, ValueError):
        return 0, ""
    count, why = found.get(1, 0), found.get(2, b"")
    return (
        count if isinstance(count, int) else 0,
        why.decode("utf-8", "replace") if isinstance(why, bytes) else "",
    )


def _resource(service: str) -> dict[str, Value]:
    return {"service.name": service, "service.version": __version__}


# ---- JSON


def _json_span(span: Span) -> dict[str, Any]:
    row: dict[str, Any] = {"traceId": span.trace.hex(), "spanId": span.id.hex()}
    if span.parent is not None:
        row["parentSpanId"] = span.parent.hex()
    row |= {
        "name": clean_text(span.name),
        "kind": int(span.kind),
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _json_attributes(span.attributes),
    }
    if span.events:
        row["events"] = [
            {"timeUnixNano": str(event.time_ns), "name": event.name, "attributes": _json_attributes(event.attributes)}
            for event in span.events
        ]
    if span.error is not None:
        row["status"] = {"code": _ERROR} | ({"message": clean_text(span.error)} if span.error else {})
    return row


def _json_attributes(attributes: Mapping[str, Value]) -> list[dict[str, Any]]:
    return [{"key": clean_text(key), "value": _json_value(value)} for key, value in attributes.items()]


def _json_value(value: Value) -> dict[str, Any]:
    value = _fitting(value)
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case str():
            return {"stringValue": clean_text(value)}
    return {"arrayValue": {"values": [_json_value(item) for item in value]}}


def _fitting(value: Value) -> Value:
    """Integers have 64 bits; a larger one is written as text."""
    big = isinstance(value, int) and not -_INT64 <= value < _INT64
    return str(value) if big else value


# ---- protobuf


def _span(span: Span) -> bytes:
    parts = [
        _bytes(1, span.trace),
        _bytes(2, span.id),
        _bytes(4, span.parent or b""),
        _text(5, span.name),
        _number(6, span.kind),
        _fixed64(7, span.start_ns),
        _fixed64(8, span.end_ns),
        _attributes(9, span.attributes),
        *(_message(11, _event(event)) for event in span.events),
    ]
    if span.error is not None:
        parts.append(_message(15, _text(2, span.error) + _number(3, _ERROR)))
    return b"".join(parts)


def _event(event: SpanEvent) -> bytes:
    return _fixed64(1, event.time_ns) + _text(2, event.name) + _attributes(3, event.attributes)


def _attributes(number: int, attributes: Mapping[str, Value]) -> bytes:
    return b"".join(_message(number, _text(1, key) + _message(2, _value(value))) for key, value in attributes.items())


def _value(value: Value) -> bytes:
    value = _fitting(value)
    match value:
        case bool():
            return _key(2, _VARINT) + _varint(int(value))
        case int():
            return _key(3, _VARINT) + _varint(value % (1 << 64))
        case float():
            return _key(4, _FIXED64) + struct.pack("<d", value)
        case str():
            return _message(1, clean_text(value).encode())
    return _message(5, b"".join(_message(1, _value(item)) for item in value))


def _message(number: int, content: bytes) -> bytes:
    return _key(number, _BYTES) + _varint(len(content)) + content


def _bytes(number: int, content: bytes) -> bytes:
    return _message(number, content) if content else b""


def _text(number: int, text: str) -> bytes:
    return _bytes(number, clean_text(text).encode())


def _number(number: int, value: int) -> bytes:
    return _key(number, _VARINT) + _varint(value) if value else b""


def _fixed64(number: int, value: int) -> bytes:
    return _key(number, _FIXED64) + struct.pack("<Q", value) if value else b""


def _key(number: int, wire: int) -> bytes:
    return _varint(number << 3 | wire)


def _varint(value: int) -> bytes:
    """Seven bits to a byte, the lowest first; the eighth bit says that more follow."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _fields(data: bytes) -> dict[int, int | bytes]:
    """The fields of a message by number. Raises an `IndexError` or `ValueError` for what is no message."""
    found: dict[int, int | bytes] = {}
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        if key & 7 == _VARINT:
            found[key >> 3], at = _read_varint(data, at)
        elif key & 7 == _BYTES:
            length, at = _read_varint(data, at)
            if at + length > len(data):
                raise ValueError("the message ends too early")
            found[key >> 3] = data[at : at + length]
            at += length
        else:
            raise ValueError(f"wire type {key & 7}")
    return found


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
