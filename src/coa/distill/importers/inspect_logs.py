"""Logs of Inspect: `.json`, and `.eval`, a zip archive with one JSON file per sample.

A sample is one run. Its events are flat, and `span_begin` gives each a place in a tree: agents, the tools they call,
and the agents that tools start. Long texts are kept once, as attachments, and so are the messages that calls read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from coa.distill.importers.content import as_arguments, as_calls, as_task, as_text, as_thought, as_time, as_usage, at
from coa.distill.importers.content import mappings as rows_of
from coa.distill.importers.json_files import FAULTS, Bad, reason_of, values
from coa.distill.importers.messages import Said, definitions_in
from coa.distill.importers.spans.span import SpanReading, SpanRole, TraceSpan
from coa.distill.importers.spans.tree import runs_of
from coa.distill.importers.trace_format import TraceFormat
from coa.distill.team_run import Skipped, TeamRun
from coa.errors import TraceError
from coa.trajectory.types import Failure, FailureSite, Stop

Json = Mapping[str, Any]
_ATTACHED: Final = re.compile(r"attachment://([0-9a-f]{32})")
_OUTSIDE: Final = ("init", "scorers")
"""Spans at the top that are no part of the team's run."""
_ROOT: Final = "sample"


def is_log(value: object) -> bool:
    """A whole log, or a sample of one."""
    if not isinstance(value, Mapping):
        return False
    return {"eval", "status", "version"} <= set(value) or {"epoch", "events", "input", "target"} <= set(value)


def read_log(path: Path) -> Iterator[TeamRun | Skipped]:
    for place, value in values(path):
        if isinstance(value, Bad):
            yield Skipped(file=str(path), place=value.place, reason=value.reason)
            continue
        samples = rows_of(value.get("samples")) if "eval" in value else [value]
        if not samples:
            yield Skipped(file=str(path), place=place, reason="a log of Inspect without samples, such as its header")
        for sample in samples:
            where = f"sample {sample.get('id')} epoch {sample.get('epoch')}"
            try:
                yield from_sample(sample, str(path), where)
            except (TraceError, *FAULTS) as error:  # a damaged sample does not affect the others
                yield Skipped(file=str(path), place=where, reason=reason_of(error))


def from_sample(sample: Json, file: str = "", place: str = "") -> TeamRun:
    attached = sample.get("attachments")
    sample = _whole(sample, attached if isinstance(attached, Mapping) else {})
    (run,) = runs_of(_spans(sample), file, FORMAT.name)
    question = _asked(sample.get("input")) or run.task.question
    answer = run.root.answer if run.root.answer is not None else as_text(at(sample, "output", "completion")) or None
    changes: dict[str, Any] = {
        "task": as_task(question, sample.get("target") or None, str(sample.get("id"))),
        "root": run.root.model_copy(update={"answer": answer, "request": run.root.request or question}),
        "source": run.source.model_copy(update={"place": place}),
    }
    if error := as_text(at(sample, "error", "message")):
        changes |= {"stop": Stop.FAILED, "failure": Failure(site=FailureSite.RUNTIME, message=error)}
    elif isinstance(sample.get("limit"), Mapping):
        changes["stop"] = Stop.TIME if "time" in str(sample["limit"].get("type")) else Stop.STEPS
    elif answer is not None:
        changes |= {"stop": Stop.ANSWERED, "failure": None}
    if isinstance(sample.get("scores"), Mapping):
        changes["meta"] = {"scores": {name: at(score, "value") for name, score in sample["scores"].items()}}
    return run.model_copy(update=changes)


def _whole(value: Any, attached: Json) -> Any:
    """The value with its attachments in their places."""
    if isinstance(value, str):
        return _ATTACHED.sub(lambda found: str(attached.get(found[1], found[0])), value) if "://" in value else value
    if isinstance(value, list):
        return [_whole(item, attached) for item in value]
    if isinstance(value, Mapping):
        return {name: item if name == "attachments" else _whole(item, attached) for name, item in value.items()}
    return value


def _asked(value: object) -> str:
    """The question: a text, or the last message of the user."""
    if isinstance(value, str):
        return value
    return next((as_text(row.get("content")) for row in reversed(rows_of(value)) if row.get("role") == "user"), "")


def _spans(sample: Json) -> Iterator[TraceSpan]:
    root = _span(_ROOT, None, 0, {}, SpanReading(name="agent"))
    made: dict[str, TraceSpan] = {_ROOT: root}
    outside: set[str] = set()
    pool = rows_of(at(sample, "events_data", "messages"))
    for order, (event, parent) in enumerate(_events(sample.get("events"), _ROOT), start=1):
        above = as_text(event.get("span_id")) or parent
        above = above if above in made else parent
        match event.get("event"):
            case "span_begin":
                identity, above = as_text(event.get("id")), as_text(event.get("parent_id")) or parent
                kind, name = event.get("type"), as_text(event.get("name"))
                if kind in _OUTSIDE or above in outside:
                    outside.add(identity)
                elif identity not in made:
                    role = SpanRole.AGENT if kind == "agent" else SpanRole.OTHER
                    above = above if above in made else _ROOT
                    made[identity] = _span(identity, above, order, event, SpanReading(role, name))
                    made[identity].name = f"{kind} {name}"
            case _ if as_text(event.get("span_id")) in outside:
                continue
            case "model" if not event.get("pending"):
                made[f"event {order}"] = _span(f"event {order}", above, order, event, _model(event, pool))
            case "tool":
                begun = _begun(made, as_text(event.get("function")))
                if begun is None:
                    begun = made[f"event {order}"] = _span(f"event {order}", above, order, event, SpanReading())
                begun.reading = _tool(event)
    yield from made.values()


def _events(rows: object, parent: str) -> Iterator[tuple[Json, str]]:
    """Events and what they enclose: older logs keep the events of a tool inside its event."""
    for row in rows_of(rows):
        yield row, parent
        yield from _events(row.get("events"), parent)


def _begun(made: Mapping[str, TraceSpan], name: str) -> TraceSpan | None:
    """The span that was begun for a tool and has no event yet."""
    return next(
        (
            span for span in reversed(list(made.values()))
            if span.name == f"tool {name}" and span.reading is not None and span.reading.role is SpanRole.OTHER
        ),
        None,
    )  # fmt: skip


def _span(identity: str, parent: str | None, order: int, event: Json, reading: SpanReading) -> TraceSpan:
    start = as_time(event.get("timestamp")) or 0.0
    return TraceSpan("", identity, parent, reading.name, start, order, {}, reading=reading)


def _tool(event: Json) -> SpanReading:
    error = event.get("error")
    return SpanReading(
        SpanRole.TOOL, as_text(event.get("function")), call_id=as_text(event.get("id")) or None,
        arguments=as_arguments(event.get("arguments")), output=as_text(event.get("result")) or None,
        error=as_text(at(error, "message")) or "it failed" if error else None,
    )  # fmt: skip


def _model(event: Json, pool: list[Json]) -> SpanReading:
    heard = rows_of(event.get("input"))
    for ends in event.get("input_refs") or ():
        heard = [*heard, *pool[ends[0] : ends[1]]]
    output = event.get("output")
    replies = rows_of(at(output, "choices"))[:1]
    usage = at(output, "usage")
    counts = {**usage, "cached_tokens": usage.get("input_tokens_cache_read")} if isinstance(usage, Mapping) else None
    return SpanReading(
        SpanRole.MODEL, heard=tuple(map(_said, heard)), said=tuple(_said(at(row, "message") or {}) for row in replies),
        usage=as_usage(counts), model=as_text(at(output, "model") or event.get("model")) or None,
        definitions=definitions_in(event.get("tools")),
        error=as_text(event.get("error") or at(output, "error")) or None,
    )  # fmt: skip


def _said(row: Json) -> Said:
    role, content, identity = as_text(row.get("role")), row.get("content"), as_text(row.get("tool_call_id"))
    text, error = as_text(content), row.get("error")
    if role == "tool":
        text = text or as_text(at(error, "message"))
        return Said(role, text, answers=((identity, text),) if identity else (), failed=(identity,) if error else ())
    calls = [{**call, "name": call.get("function"), "function": None} for call in rows_of(row.get("tool_calls"))]
    return Said(role, text, as_thought(content), as_calls(calls))


FORMAT: Final = TraceFormat("inspect", "logs of Inspect", is_log, read_file=read_log)
