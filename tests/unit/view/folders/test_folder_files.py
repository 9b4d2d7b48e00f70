"""Files of run folders that are half-written, damaged or of another version."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coa.trajectory import Score, Stop, Task, Usage, write
from coa.trajectory.types import Failure, FailureSite
from coa.view.folders import light_runs as reading
from coa.view.folders.files import read_json, read_metrics
from coa.view.folders.light_runs import LightRuns, light_runs
from support.builders import make_trajectory, web_run


def test_rows_of_one_step_are_joined_in_the_order_of_steps(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 2, "loss": 1}\n{"step": 1, "loss": 2}\n{"step": 2, "held_out_loss": 3}\n')
    rows, problems = read_metrics(file)
    assert rows == [{"step": 1, "loss": 2}, {"step": 2, "loss": 1, "held_out_loss": 3}]
    assert problems == []


def test_a_row_that_is_being_written_is_no_problem(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1, "loss": 2}\n{"step": 2, "lo')
    assert read_metrics(file) == ([{"step": 1, "loss": 2}], [])


def test_damaged_rows_are_named_and_left_out(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1}\n{"st\n[1]\n{"loss": 1}\n{"step": true}\n{"step": 2}\n')
    rows, (problem,) = read_metrics(file)
    assert [row["step"] for row in rows] == [1, 2]
    assert problem == "metrics.jsonl: 4 damaged rows left out (line 2, 3, 4, 5)."


def test_metrics_are_read_again_when_they_have_grown(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1}\n')
    assert len(read_metrics(file)[0]) == 1
    with file.open("a") as out:
        out.write('{"step": 2}\n')
    assert len(read_metrics(file)[0]) == 2


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "\x00\xff"])
def test_a_damaged_report_is_a_problem(text: str, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(text)
    found, problem = read_json(tmp_path / "report.json")
    assert found is None
    assert problem.startswith("report.json ")


def test_a_report_that_is_not_there_is_none(tmp_path: Path) -> None:
    assert read_json(tmp_path / "report.json") == (None, "")


def test_a_run_is_read_without_its_texts(tmp_path: Path) -> None:
    run = web_run(scores={"exact": Score(value=0.0, reason="another name")}, usage=Usage(prompt_tokens=3, tool_calls=1))
    task = Task(id="t1", question="Who?", meta={"family": "one_hop"})
    write(tmp_path / "runs.jsonl", [run.model_copy(update={"task": task})])
    (found,) = light_runs(tmp_path / "runs.jsonl").runs
    attempt = found.attempt
    assert (attempt.task, attempt.value, attempt.answer, attempt.stop) == ("t1", 0.0, "Ada", Stop.ANSWERED)
    assert (attempt.usage.total_tokens, attempt.usage.tool_calls, found.family) == (3, 1, "one_hop")


def test_failures_and_tool_errors_are_named(tmp_path: Path) -> None:
    failed = make_trajectory(("web_search", "x"), ("observation", "no"), stop=Stop.FAILED,
                             failure=Failure(site=FailureSite.TOOL, message="no network"))  # fmt: skip
    step = failed.steps[1].model_copy(update={"meta": {"ok": False, "error": "timeout"}})
    write(tmp_path / "runs.jsonl", [failed.model_copy(update={"steps": (failed.steps[0], step)})])
    (found,) = light_runs(tmp_path / "runs.jsonl").runs
    assert (found.site, found.failure) == ("tool", "no network")
    assert found.tool_errors == (("web_search", "timeout"),)


def test_a_file_that_grows_is_read_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "runs.jsonl"
    write(file, [web_run(sample=0)])
    first = light_runs(file).offset
    taken: list[bytes] = []
    take = reading._take

    def noted(found: LightRuns, line: bytes, scorer: str | None) -> None:
        taken.append(line)
        take(found, line, scorer)

    monkeypatch.setattr(reading, "_take", noted)
    write(file, [web_run(sample=1)])
    found = light_runs(file)
    assert [run.attempt.sample for run in found.runs] == [0, 1]
    assert len(taken) == 1 and found.offset > first


def test_a_file_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    write(file, [web_run(sample=0), web_run(sample=1)])
    assert len(light_runs(file).runs) == 2
    other = tmp_path / "other.jsonl"
    write(other, [make_trajectory(("answer", "x"), question="Another?")])
    os.replace(other, file)
    assert [run.attempt.answer for run in light_runs(file).runs] == ["x"]


def test_damaged_records_are_counted_and_a_torn_one_waits(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    write(file, [web_run()])
    with file.open("ab") as out:
        out.write(b'{"task": 3}\nnonsense\n{"task": {"id": "t9"')
    found = light_runs(file)
    assert (len(found.runs), found.damaged) == (1, 2)
    with file.open("ab") as out:
        out.write(b"}}\n")
    assert [run.attempt.task for run in light_runs(file).runs] == ["t1", "t9"]


def test_no_more_than_a_part_of_a_huge_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "runs.jsonl"
    write(file, [web_run(sample=number) for number in range(20)])
    monkeypatch.setattr(reading, "MOST_BYTES", file.stat().st_size // 2)
    found = light_runs(file)
    assert 5 < len(found.runs) < 15
    assert not found.complete
