"""Spans written by the real instrumentation and SDK of a real team: the importer and the recorder tell the same run."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import smolagents

from coa.distill.importers.detect import read_traces
from coa.distill.recorder import record
from coa.distill.team_run import AgentRun, ModelCall, SubRun, TeamRun, ToolResult
from coa.trajectory.types import Task
from support.teams import ScriptedTeamModel, two_agents

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


def spans_of_a_run(path: Path) -> tuple[TeamRun, list[ScriptedTeamModel]]:
    """Instrument, run and record the team; what the recorder saw, and the models with their logs."""
    printed = io.StringIO()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=printed)))
    instrumentor = SmolagentsInstrumentor()
    agent, models = two_agents()
    instrumentor.instrument(tracer_provider=provider)
    try:
        seen = record(agent, TASK)
    finally:
        instrumentor.uninstrument()
        provider.shutdown()
    path.write_text(printed.getvalue())
    return seen, models


def test_the_spans_of_a_team_tell_what_the_recorder_saw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The instrumentation wraps the model classes that smolagents itself exports.
    monkeypatch.setattr(smolagents, "ScriptedTeamModel", ScriptedTeamModel, raising=False)
    seen, models = spans_of_a_run(tmp_path / "console.json")
    (run,) = read_traces(tmp_path / "console.json")
    assert isinstance(run, TeamRun) and run.source.format == "openinference"
    assert run.answer == seen.answer == "1082"
    assert sum(len(model.log) for model in models) == run.usage.model_calls == 14
    assert outline(run.root) == outline(seen.root)
    assert run.left_out == ()


def test_a_trace_without_model_spans_says_so(tmp_path: Path) -> None:
    # Model classes of one's own give no spans.
    spans_of_a_run(tmp_path / "console.json")
    (run,) = read_traces(tmp_path / "console.json")
    assert isinstance(run, TeamRun) and run.usage.model_calls == 0
    assert [item.what for item in run.left_out] == ["all model calls"]
    assert [event.run.answer for event in run.root.events if isinstance(event, SubRun)] == ["330 m", "330 m confirmed"]
