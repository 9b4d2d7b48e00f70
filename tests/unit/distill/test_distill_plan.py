"""What `coa distill --dry-run` says about traces and filters."""

from __future__ import annotations

from pathlib import Path

import pytest

from coa.distill import DistillConfig, plan
from coa.errors import StoreError
from support.distilled import good


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    folder = tmp_path / "traces"
    folder.mkdir()
    runs = [good(task_id="a"), good(task_id="b", question="Who kept the northern light?")]
    (folder / "runs.jsonl").write_text("".join(run.to_json() + "\n" for run in runs))
    (folder / "other.json").write_text('{"a": 1}')
    return folder


def test_files_formats_and_filters_are_named(traces: Path) -> None:
    found = plan(DistillConfig(), [traces])
    assert found.files == 2 and found.unreadable == (str(traces / "other.json"),)
    (kind,) = set(found.records) - {"unknown"}
    assert found.records[kind] == 2 and found.formats[kind] == 1
    assert found.filters == ("complexity", "quality", "reflection", "correction", "duplicates")
    assert set(found.skipped) == {"length", "contamination"}
    assert any("2 records in 1 file" in line for line in found.lines())


def test_filters_that_need_a_setting_run_with_it(traces: Path, tmp_path: Path) -> None:
    (tmp_path / "held.jsonl").write_text('{"id": "1", "question": "Who?", "answer": "Ada"}\n')
    config = DistillConfig(student="smollm2", decontaminate=(str(tmp_path / "held.jsonl"),))
    found = plan(config, [traces])
    assert "length" in found.filters and "contamination" in found.filters and not found.skipped
    assert found.benchmark_questions == 1


def test_traces_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no file or folder"):
        plan(DistillConfig(), [tmp_path / "nowhere"])
