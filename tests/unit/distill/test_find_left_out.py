"""What `coa inspect` says of runs that it cannot show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coa.distill.find_runs import find_runs
from coa.trajectory import profile_of
from coa.trajectory.formats.otlp_export import to_spans
from coa.trajectory.formats.otlp_wire import resource_spans
from support.builders import web_run


def test_runs_that_are_left_out_for_the_same_reason_are_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "spans.jsonl"
    with file.open("w") as out:
        for sample in range(3):
            run = web_run(sample=sample)
            made = resource_spans(to_spans(run, profile_of(run), ended_ns=10**18, content=False), "coa")
            out.write(json.dumps({"resourceSpans": [made]}))
            out.write("\n")
    (found,) = find_runs(str(file))
    assert list(found.read()) == []
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == f"{file}: left out 3 times: the spans of this run were written without content"
