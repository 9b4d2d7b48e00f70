"""The stage over files: ids, damage, formats, what it writes, and what it keeps."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

import coa
from coa.errors import ConfigError, StoreError
from coa.scan import ScanConfig, Severity
from coa.scan import scan as scan_runs
from coa.scan.reading import FoundRun, Problem, RunSource
from coa.trajectory import Trajectory, write
from coa.trajectory.identity import run_id
from support.documents import ROOT
from support.scanned import run_of, seen

LOOP = "I should look for the designer of the bridge first."
LOOPING = run_of(("think", LOOP), ("plan", "a"), ("think", LOOP), ("plan", "b"), ("think", LOOP), ("answer", "Ida"))
CLEAN = run_of(("web_search", "bridge"), seen("Ida Kroll", ok=True), ("answer", "Ida Kroll"))
ONLY_LOOPS = ScanConfig(scanners=("loops",))


def numbered(run: Trajectory, number: int) -> Trajectory:
    return run.model_copy(update={"task": run.task.model_copy(update={"id": f"t{number}"})})


def mixed(count: int) -> list[Trajectory]:
    """Every third run goes round in circles."""
    return [numbered(CLEAN if number % 3 else LOOPING, number) for number in range(count)]


def test_findings_have_the_id_the_file_and_the_step_of_their_run(tmp_path: Path) -> None:
    for name in ("runs.jsonl", "runs.parquet"):
        write(tmp_path / name, mixed(7))
        report = scan_runs(tmp_path / name, ONLY_LOOPS)
        loops = report.scanners["loops"]
        assert (report.runs, loops.runs, loops.findings, loops.failed) == (7, 3, 3, 0)
        assert [found.run for found in loops.first] == [run_id(tmp_path / name, number) for number in (0, 3, 6)]
        assert [(found.task, found.step, found.file) for found in loops.first][1] == ("t3", 2, str(tmp_path / name))
        assert loops.first[0].address == f"#/run/{run_id(tmp_path / name, 0)}?step=2"


def test_the_package_is_the_stage(tmp_path: Path) -> None:
    write(tmp_path / "runs.jsonl", mixed(3))
    report = coa.scan([tmp_path], coa.ScanConfig(scanners=("loops",)))
    assert isinstance(report, coa.ScanReport) and isinstance(report.scanners["loops"].first[0], coa.Finding)


def test_a_damaged_line_is_counted_and_named_and_keeps_its_number(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    write(path, mixed(4))
    lines = path.read_bytes().splitlines()
    lines[1:1] = [b'{"schema_version": 2, "task": 5}', b"", b"not json", b'{"schema_version": 99}']
    path.write_bytes(b"\n".join([*lines, b'{"torn']))
    report = scan_runs(path, ONLY_LOOPS)
    assert (report.runs, report.problem_count) == (4, 4)
    # Lines 2, 4 and 5 have the numbers 1 to 3; the blank line has none.
    assert [found.run for found in report.scanners["loops"].first] == [run_id(path, 0), run_id(path, 6)]
    named = [problem.message for problem in report.problems]
    assert named[0].startswith("line 2: ") and named[1].startswith("line 4: ")
    assert named[2].startswith("line 5: this trajectory has schema version 99")
    assert named[3] == "line 9 is torn: it was not completely written"


def test_a_damaged_file_in_a_tree_does_not_stop_the_others(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "trajectories.parquet", mixed(4))
    whole = (tmp_path / "a" / "trajectories.parquet").read_bytes()
    (tmp_path / "a" / "trajectories.parquet").write_bytes(whole[: len(whole) // 2])
    report = scan_runs(tmp_path, ONLY_LOOPS)
    assert (report.runs, report.problem_count) == (4, 1)
    assert report.problems[0].file == str(tmp_path / "a" / "trajectories.parquet")


def test_a_run_whose_profile_is_gone_is_named(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    lost = CLEAN.model_copy(update={"profile": "gone", "profile_hash": "f" * 16})
    write(path, [lost, numbered(LOOPING, 1)])
    report = scan_runs(path, ONLY_LOOPS)
    assert (report.runs, report.problem_count, report.scanners["loops"].runs) == (2, 1, 1)
    assert report.problems[0].message.startswith("record 1: ")


def test_a_definition_that_comes_later_in_the_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "runs.jsonl"
    write(path, mixed(3))
    path.write_bytes(b"\n".join(reversed(path.read_bytes().splitlines())) + b"\n")
    monkeypatch.setattr("coa.trajectory.definitions._texts", {})
    monkeypatch.setattr("coa.trajectory.profile._known", {})
    report = scan_runs(path, ONLY_LOOPS)
    assert (report.runs, report.problem_count) == (3, 0)


def test_a_file_that_two_paths_lead_to_is_read_once(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", mixed(3))
    (tmp_path / "other").mkdir()
    write(tmp_path / "other" / "b.jsonl", mixed(3))
    assert scan_runs([tmp_path, tmp_path / "a.jsonl", tmp_path], ONLY_LOOPS).runs == 6


def test_recorded_teams_and_rows_of_others_are_scanned(tmp_path: Path) -> None:
    rows = [{"instruction": "Solve it.", "input": "Who?", "output": "<think>hm</think><answer>Ida</answer>"}, {"a": 1}]
    (tmp_path / "rows.jsonl").write_bytes(b"\n".join(map(orjson.dumps, rows)) + b"\n")
    found = list(RunSource([tmp_path / "rows.jsonl"]))
    assert isinstance(found[0], FoundRun) and found[0].number == 0
    assert isinstance(found[1], Problem) and found[1].message.startswith("line 2: ")
    team = scan_runs(ROOT / "tests" / "corpus" / "teams" / "smolagents")
    assert team.runs and not team.problem_count


def test_runs_of_a_team_are_numbered_in_their_file(tmp_path: Path) -> None:
    folder = ROOT / "tests" / "corpus" / "teams"
    found = [item for item in RunSource([folder]) if isinstance(item, FoundRun)]
    assert len({run.id for run in found}) == len(found) > 20
    chats = [
        [{"role": "user", "content": f"Question {number}?"}, {"role": "assistant", "content": "Ida"}]
        for number in range(3)
    ]
    rows = [orjson.dumps({"messages": chat}) for chat in chats]
    (tmp_path / "chats.jsonl").write_bytes(b"\n".join([rows[0], b"not json", *rows[1:]]) + b"\n")
    items = list(RunSource([tmp_path / "chats.jsonl"]))
    assert [item.number for item in items if isinstance(item, FoundRun)] == [0, 1, 2]
    assert [item.file for item in items if isinstance(item, Problem)] == [str(tmp_path / "chats.jsonl")]


def test_everything_goes_to_the_folder_and_only_the_first_findings_stay(tmp_path: Path) -> None:
    write(tmp_path / "runs.jsonl", mixed(30))
    out = tmp_path / "found"
    config = ScanConfig(scanners=("loops", "tool_errors"), examples=2)
    report = scan_runs(tmp_path / "runs.jsonl", config, out=out)
    written = [orjson.loads(line) for line in (out / "findings.jsonl").read_bytes().splitlines()]
    assert len(written) == 10 == report.scanners["loops"].findings
    assert (
        len(report.scanners["loops"].first) == 2 and report.at_least("warning") == 10 and report.at_least("error") == 0
    )
    assert set(written[0]) == {"run", "step", "scanner", "severity", "message", "kind", "task", "file"}
    assert orjson.loads((out / "report.json").read_bytes()) == orjson.loads(orjson.dumps(report.data))
    again = scan_runs(tmp_path, config, out=out)
    assert again.runs == 30, "what a scan wrote is no run"


def test_what_a_scan_wrote_before_stays_if_the_next_one_fails(tmp_path: Path) -> None:
    write(tmp_path / "runs.jsonl", mixed(3))
    scan_runs(tmp_path / "runs.jsonl", ONLY_LOOPS, out=tmp_path / "found")
    before = (tmp_path / "found" / "findings.jsonl").read_bytes()
    (tmp_path / "tasks.jsonl").write_text('{"id": "a", "question": "Who?"}\n')
    with pytest.raises(StoreError, match="it holds tasks and no runs"):
        scan_runs(tmp_path / "tasks.jsonl", out=tmp_path / "found")
    assert (tmp_path / "found" / "findings.jsonl").read_bytes() == before


def test_a_path_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no"):
        scan_runs(tmp_path / "nothing")


def test_the_judge_as_a_scanner_needs_a_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a model"):
        scan_runs(tmp_path, ScanConfig(scanners=("judge",)))


def test_kinds_beyond_a_limit_are_counted_together(tmp_path: Path) -> None:
    failing = [
        run_of(
            ("code", "```py\nx\n```"), seen(f"Traceback (most recent call last):\nE{number}Error: no"), ("answer", "x")
        )
        for number in range(60)
    ]
    write(tmp_path / "runs.jsonl", failing)
    found = scan_runs(tmp_path, ScanConfig(scanners=("tool_errors",))).scanners["tool_errors"]
    assert len(found.kinds) == 51 and found.kinds["other"] == 10 and found.severities[Severity.WARNING] == 60


class Heard:
    def __init__(self) -> None:
        self.updates: list[tuple[int, str]] = []
        self.open = 0

    def start(self, title: str, total: int | None = None) -> None:
        self.open += 1

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        self.updates.append((done, note))

    def say(self, line: str) -> None:
        pass

    def finish(self) -> None:
        self.open -= 1


def test_progress_counts_runs_files_and_findings(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        write(tmp_path / name, mixed(2))
    heard = Heard()
    scan_runs(tmp_path, ONLY_LOOPS, progress=heard)
    assert heard.updates[0] == (1, "file 1 of 2, 1 finding")
    assert heard.updates[-1] == (4, "file 2 of 2, 2 findings") and heard.open == 0


def test_an_empty_folder_is_named_once(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError) as caught:
        scan_runs(tmp_path / "empty")
    assert caught.value.message.startswith(f"no run can be read at {tmp_path / 'empty'}: the folder ")


def test_a_question_needs_a_judge(tmp_path: Path) -> None:
    write(tmp_path / "runs.jsonl", mixed(1))
    with pytest.raises(ConfigError) as caught:
        scan_runs(tmp_path / "runs.jsonl", ScanConfig(question="Was it polite?"))
    assert caught.value.hint is not None and "--judge" in caught.value.hint
