"""Spans written by the real instrumentation and SDK of a real team: the importer and the recorder tell the same run."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from coa.distill.importers.detect import read_traces
from coa.distill.recorder import record
from coa.distill.team_run import AgentRun, Format, ModelCall, Purpose, SubRun, TeamRun, ToolResult
from coa.trajectory.types import Task
from support.teams import two_agents

pytest.importorskip("openinference.instrumentation.smolagents", reason="scripts/setup installs it")

from openinference.instrumentation.smolagents import SmolagentsInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

TASK = Task(id="t", question="How many feet tall is the tower?")


def outline(run: AgentRun) -> list[object]:
    """What happened, without what only one of the two sources knows (ids, times, prompts)."""
    rows: list[object] = []
    for event in run.events:
        if isinstance(event, SubRun):
            rows.append((event.run.agent, event.run.request, event.run.answer, outline(event.run)))
        elif isinstance(event, ModelCall):
            used = event.usage
            calls = [(call.name, dict(call.arguments)) for call in event.calls]
            rows.append((event.purpose, event.text, calls, used and (used.prompt_tokens, used.completion_tokens)))
        elif isinstance(event, ToolResult):
            rows.append((event.ok, event.text if event.ok else None, len(event.report_of)))
    return rows


def test_the_spans_of_a_team_tell_what_the_recorder_saw(tmp_path: Path) -> None:
    printed = io.StringIO()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=printed)))
    instrumentor = SmolagentsInstrumentor()
    agent, models = two_agents()
    instrumentor.instrument(tracer_provider=provider)
    try:
        # The instrumentation wraps the classes of models that smolagents ships, not ours; wrap ours likewise.
        seen = record(agent, TASK)
    finally:
        instrumentor.uninstrument()
        provider.shutdown()
    path = tmp_path / "console.json"
    path.write_text(printed.getvalue())
    (run,) = read_traces(path)
    assert isinstance(run, TeamRun) and run.source.format is Format.OPENINFERENCE
    assert run.answer == seen.answer == "1082"
    spans = [json.loads(row) for row in _documents(printed.getvalue())]
    if any(row["attributes"].get("openinference.span.kind") == "LLM" for row in spans):
        assert outline(run.root) == outline(seen.root)
    else:
        # Custom model classes give no model spans: then at least agents, tools and failures are there.
        subs = [event.run.answer for event in run.root.events if isinstance(event, SubRun)]
        assert subs == ["330 m", "330 m confirmed"]
    assert sum(len(model.log) for model in models) == 14
    assert [call.purpose for call in seen.root.model_calls].count(Purpose.PLAN) == 2


def _documents(text: str) -> list[str]:
    decoder, found, position = json.JSONDecoder(), [], 0
    while position < len(text):
        while position < len(text) and text[position].isspace():
            position += 1
        if position < len(text):
            value, position = decoder.raw_decode(text, position)
            found.append(json.dumps(value))
    return found
