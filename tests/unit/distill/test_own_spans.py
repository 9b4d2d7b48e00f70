"""Runs of coa that were exported as spans are read back as the same runs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given

from coa.choices import Target
from coa.distill.importers.detect import read_traces, survey
from coa.distill.team_run import Skipped
from coa.trajectory import Trajectory, profile_of, write
from coa.trajectory.formats.export import export
from coa.trajectory.formats.otlp_export import to_spans
from coa.trajectory.formats.otlp_wire import resource_spans
from support.builders import web_run
from support.strategies import trajectories
from support.team_of_five import team_of_five, without_tokens


def read_back(trajectory: Trajectory, change: Callable[[list[Any]], object] = lambda spans: None) -> Any:
    spans = to_spans(trajectory, profile_of(trajectory), ended_ns=1_800_000_000_000_000_000, content=True)
    row = resource_spans(spans, "coa")
    change(row["scopeSpans"][0]["spans"])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "spans.jsonl"
        file.write_bytes(orjson.dumps({"resourceSpans": [row]}))
        [found] = read_traces(file)
    return found


def test_a_run_of_five_agents_and_three_tools_comes_back_as_it_was() -> None:
    run = team_of_five()
    back = read_back(run)
    assert isinstance(back, Trajectory) and back == without_tokens(run)
    assert [step.agent for step in back.steps] == [step.agent for step in run.steps]
    assert [step.text for step in back.steps] == [step.text for step in run.steps]
    assert back.usage == run.usage and back.scores == run.scores and profile_of(back) == profile_of(run)


@given(trajectories)
def test_any_run_comes_back_as_it_was_but_for_what_was_sampled(run: Trajectory) -> None:
    assert read_back(run) == without_tokens(run)


def test_the_order_of_spans_does_not_matter() -> None:
    assert read_back(team_of_five(), lambda spans: spans.reverse()) == without_tokens(team_of_five())


def test_spans_carry_the_profile_of_their_run() -> None:
    run = team_of_five()
    spans = to_spans(run, profile_of(run), ended_ns=10**18, content=True)
    assert spans[0].attributes["coa.profile.definition"] == profile_of(run).model_dump_json()


def test_a_run_of_which_a_span_is_missing_is_left_out_and_named() -> None:
    found = read_back(team_of_five(), lambda spans: spans.pop())
    assert isinstance(found, Skipped) and found.reason == "1 of 13 steps are missing from the spans"


def test_a_run_without_content_is_left_out_with_the_reason(tmp_path: Path) -> None:
    write(tmp_path / "runs.jsonl", [web_run()])
    export(str(tmp_path / "runs.jsonl"), Target.OTLP, tmp_path / "spans.jsonl", content=False)
    [found] = read_traces(tmp_path / "spans.jsonl")
    assert isinstance(found, Skipped) and found.reason == "the spans of this run were written without content"


@pytest.mark.parametrize("name", ["coa.run", "coa.step.extra", "gen_ai.output.messages"])
def test_damaged_attributes_cost_the_run_and_no_other(name: str, tmp_path: Path) -> None:
    def damage(spans: list[Any]) -> None:
        for span in spans:
            for attribute in span["attributes"]:
                if attribute["key"] == name:
                    attribute["value"] = {"stringValue": "{"}

    found = read_back(team_of_five(), damage)
    assert isinstance(found, Skipped) and "not understood" in found.reason


@pytest.mark.parametrize("ending", ["jsonl", "json"])
def test_a_file_of_spans_holds_every_run_in_order(ending: str, tmp_path: Path) -> None:
    runs = [team_of_five(sample=number) for number in range(5)]
    write(tmp_path / "runs.jsonl", runs)
    out = tmp_path / f"spans.{ending}"
    assert export(str(tmp_path / "runs.jsonl"), Target.OTLP, out) == 5
    assert [run for run in read_traces(out)] == [without_tokens(run) for run in runs]
    assert survey(out) == {"otel": 5 if ending == "jsonl" else 1}
    starts = [row["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["startTimeUnixNano"] for row in _requests(out)]
    assert starts == sorted(starts)


def _requests(file: Path) -> list[Any]:
    return [orjson.loads(line) for line in file.read_bytes().splitlines()] if file.suffix == ".jsonl" else []
