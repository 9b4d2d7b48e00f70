"""One span, whether it came as OTLP-JSON or in the JSON of the Python SDK, and what it says.

`SpanReading` is what a span says in terms that both dialects share: `genai.py` and `openinference.py` make it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from coa.distill.importers.autogen_messages import last_words
from coa.distill.importers.content import as_text, as_time, loaded, mappings
from coa.distill.importers.gemini_messages import from_gemini, is_gemini
from coa.distill.importers.langchain_messages import messages_in, tool_messages
from coa.distill.importers.messages import Said
from coa.distill.team_run import EvaluatorVerdict
from coa.trajectory.types import Usage

Json = Mapping[str, Any]
ASKED: Final = (
    "task",
    "question",
    "query",
    "input",
    "inputs",
    "prompt",
    "messages",
    "new_message",
    "message",
    "content",
)
ANSWERED: Final = (
    "answer",
    "final_answer",
    "final_output",
    "output",
    "outputs",
    "result",
    "raw",
    "messages",
    "content",
)


_PRINTED: Final = re.compile(r"None\Z|id='[^']*' source='")
"""Nothing, and messages of AutoGen, as Python prints them. The model's input has the messages as they are."""


class SpanRole(StrEnum):
    AGENT = "agent"
    MODEL = "model"
    TOOL = "tool"
    PLAN = "plan"
    JUDGE = "judge"
    OTHER = "other"


@dataclass(frozen=True)
class SpanReading:
    role: SpanRole = SpanRole.OTHER
    name: str = ""
    description: str = ""
    tools: tuple[str, ...] = ()
    definitions: dict[str, Any] = field(default_factory=dict)
    """The parameters of tools by name, as JSON schema."""
    system: str = ""
    heard: tuple[Said, ...] = ()
    said: tuple[Said, ...] = ()
    usage: Usage | None = None
    model: str | None = None
    call_id: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    request: str = ""
    output: str | None = None
    error: str | None = None
    verdicts: tuple[EvaluatorVerdict, ...] = ()
    results: tuple[tuple[str, str, bool], ...] = ()
    """Results of tools that a span around them returned: the call's id, the text, and whether it worked."""


def words(value: object, names: tuple[str, ...]) -> str:
    """The text of an input or output, which may be JSON with one of the fields `names`, or a list of messages."""
    value = loaded(value)
    if is_gemini(value):
        return as_text(from_gemini(value)["content"])
    if isinstance(value, Mapping):
        for name in names:
            if value.get(name) not in (None, ""):
                return words(value[name], names)
    if (last := last_words(value)) is not None and "answer" in names:
        return last
    messages = messages_in(value)
    if messages and all("role" in item for item in messages):
        wanted = "user" if "task" in names else "assistant"
        found = [item for item in messages if item.get("role") in (wanted, "human" if wanted == "user" else "ai")]
        chosen = (found[0] if wanted == "user" else found[-1]) if found else messages[-1]
        return as_text(chosen.get("content", chosen.get("parts")))
    text = as_text(value)
    return "" if _PRINTED.match(text) else text


@dataclass(eq=False)
class TraceSpan:
    trace: str
    id: str
    parent: str | None
    name: str
    start: float
    order: int
    """Start in nanoseconds: a float is too coarse to sort by."""
    attributes: dict[str, Any]
    failed: bool = False
    error: str = ""
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    children: list[TraceSpan] = field(default_factory=list)
    reading: SpanReading | None = None
    """What it says, once read."""


def results_in(*values: object) -> tuple[tuple[str, str, bool], ...]:
    """Results of tools among the messages that a span returned."""
    found = (message for value in values for message in tool_messages(value))
    return tuple(
        (str(message["tool_call_id"]), as_text(message.get("content")), message.get("status") != "error")
        for message in found
        if message.get("tool_call_id")
    )


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
    """All spans of one JSON value. Anything else is passed over."""
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
    status: Json = _mapping(row.get("status"))
    return TraceSpan(
        trace=str(context.get("trace_id", "")).removeprefix("0x"),
        id=str(context["span_id"]).removeprefix("0x"),
        parent=str(row["parent_id"]).removeprefix("0x") if row.get("parent_id") else None,
        name=str(row.get("name") or ""),
        start=(start := as_time(row.get("start_time")) or 0.0),
        order=round(start * 1e6) * 1000,
        attributes=dict(_mapping(row.get("attributes"))),
        failed=status.get("status_code") == "ERROR",
        error=str(status.get("description") or ""),
        events=[(str(e.get("name", "")), dict(e.get("attributes") or {})) for e in mappings(row.get("events"))],
    )


def _from_otlp(row: Json) -> TraceSpan:
    began = row.get("startTimeUnixNano", row.get("start_time_unix_nano")) or 0
    status: Json = _mapping(row.get("status"))
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
    return {str(row["key"]): _value(row.get("value")) for row in mappings(rows) if "key" in row}


def _value(value: object) -> Any:
    """OTLP names the type of each value: `{"stringValue": ...}`; 64-bit integers are strings."""
    if not isinstance(value, Mapping) or len(value) != 1:
        return value
    kind, inner = next(iter(value.items()))
    match kind:
        case "intValue":
            return int(inner) if str(inner).lstrip("-").isdecimal() else inner
        case "arrayValue":
            rows = inner.get("values") if isinstance(inner, Mapping) else inner
            return [_value(item) for item in rows] if isinstance(rows, list) else []
        case "kvlistValue":
            return _attributes(inner.get("values") if isinstance(inner, Mapping) else None)
        case "stringValue" | "doubleValue" | "boolValue" | "bytesValue":
            return inner
    return value


def _mapping(value: object) -> Json:
    return value if isinstance(value, Mapping) else {}


def _rows(row: Json, *names: str) -> list[Json]:
    return next((mappings(row[name]) for name in names if isinstance(row.get(name), list)), [])
