"""Distillation and teaching as a Python user calls them: in a script or a running loop, with or without progress."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coa.cli import app
from coa.distill import DistillConfig, DistillReport, TeachConfig, distill, measure_cost, teach
from coa.distill.importers.detect import FORMATS
from coa.errors import RecordingError, StoreError
from coa.models.price import Price
from coa.trajectory import read
from support.distilled import good


class Counting:
    """A progress that keeps what it is given."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.done = 0

    def start(self, title: str, total: int | None = None) -> None:
        self.calls.append("start")

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        self.done = done
        self.calls.append(note)

    def say(self, line: str) -> None:
        self.calls.append(line)

    def finish(self) -> None:
        self.calls.append("finish")


class Stopping(Counting):
    """Somebody presses Ctrl-C."""

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        super().update(done, total, note)
        raise KeyboardInterrupt


def traces(folder: Path) -> Path:
    """Two runs that are kept, one with a wrong answer, and a file that holds no trace."""
    wrong = good(task_id="w", question="Who painted the gate of the harbour?", answer="no")
    wrong = wrong.model_copy(update={"task": wrong.task.model_copy(update={"answer": ("yes",)})})
    runs = [good(task_id="a"), good(task_id="b", question="Who kept the northern light?"), wrong]
    folder.mkdir()
    (folder / "runs.jsonl").write_text("".join(run.to_json() + "\n" for run in runs))
    (folder / "other.json").write_text('{"a": 1}')
    return folder


def test_the_report_is_a_typed_object_and_the_folder_holds_the_data(tmp_path: Path) -> None:
    report = distill(DistillConfig(), [traces(tmp_path / "traces")], tmp_path / "data")
    assert isinstance(report, DistillReport)
    assert (report.read, report.kept, report.rows, report.unreadable) == (3, 2, 2, 1)
    assert report.reasons == {"wrong_answer": 1}
    quality = next(stage for stage in report.stages if stage.name == "quality")
    assert (quality.entered, quality.kept, quality.dropped) == (3, 2, 1)
    assert report.unreadable_places[0].file.endswith("other.json")
    assert {run.task.id for run in read(report.trajectories)} == {"a", "b"}
    assert json.loads(report.json.read_text())["written"] == {"trajectories": 2, "rows": 2}


def test_it_runs_inside_a_running_loop_and_gives_the_same_bytes(tmp_path: Path) -> None:
    source = traces(tmp_path / "traces")

    async def notebook() -> DistillReport:
        return distill(DistillConfig(), [source], tmp_path / "inside")

    asyncio.run(notebook())
    distill(DistillConfig(), [source], tmp_path / "outside")
    for name in ("report.json", "trajectories.jsonl", "config.json"):
        assert (tmp_path / "inside" / name).read_bytes() == (tmp_path / "outside" / name).read_bytes()


def test_progress_is_started_updated_and_finished_also_when_it_fails(tmp_path: Path) -> None:
    shown = Counting()
    distill(DistillConfig(), [traces(tmp_path / "traces")], tmp_path / "data", progress=shown)
    assert shown.calls[0] == "start" and shown.calls[-1] == "finish"
    assert shown.calls.count("start") == shown.calls.count("finish") and shown.done == 2, "files"
    stopped = Stopping()
    with pytest.raises(KeyboardInterrupt):
        distill(DistillConfig(), [tmp_path / "traces"], tmp_path / "data", progress=stopped)
    assert stopped.calls[0] == "start" and stopped.calls[2:] == ["finish"]
    with pytest.raises(StoreError, match="nowhere"):
        distill(DistillConfig(), [tmp_path / "nowhere"], tmp_path / "data")


def test_settings_of_this_machine_are_not_in_what_is_shared(tmp_path: Path) -> None:
    roles = tmp_path / "private-roles.toml"
    roles.write_text('[agents]\nscribe = "drop"\n')
    distill(DistillConfig(roles=roles), [traces(tmp_path / "traces")], tmp_path / "data")
    assert all("private-roles" not in path.read_text() for path in (tmp_path / "data").glob("*.json"))


def test_a_folder_within_the_traces_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="its own output as traces"):
        distill(DistillConfig(), [traces(tmp_path / "traces")], tmp_path / "traces" / "data")


def test_where_nothing_is_kept_the_report_advises(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"a": 1}')
    nothing = distill(DistillConfig(), [tmp_path / "other.json"], tmp_path / "data")
    assert nothing.kept == nothing.read == 0 and "ATIF" in nothing.advice and "chat" in nothing.advice


def test_cost_puts_paths_side_by_side_and_names_what_it_could_not_read(tmp_path: Path) -> None:
    report = distill(DistillConfig(), [traces(tmp_path / "traces")], tmp_path / "data")
    cost = measure_cost([tmp_path / "traces", report.out], shared=True)
    # The wrong answer is not in the data, so both paths have the two right ones in common.
    assert [(row.runs, row.successes) for row in cost.rows] == [(2, 2), (2, 2)]
    assert [place.file for place in cost.unreadable] == [str(tmp_path / "traces" / "other.json")]
    with pytest.raises(StoreError, match=r"no run to count; .*other\.json.*: no known trace format"):
        measure_cost([tmp_path / "traces" / "other.json"])


def test_flags_settings_and_file_give_one_config(tmp_path: Path) -> None:
    (tmp_path / "d.toml").write_text('profile = "nano"\nseed = 3\n[quality]\nerror_share = 0.5\n')
    words = ["distill", "traces", "--out", "data", "--config", str(tmp_path / "d.toml"), "--set", "seed=4"]
    words += ["--decontaminate", "gaia", "--keep-unscored", "--at-once", "5", "--dry-run"]
    done = CliRunner().invoke(app, words)
    expected = DistillConfig.model_validate(
        {
            "profile": "nano",
            "seed": 4,
            "decontaminate": ["gaia"],
            "concurrency": 5,
            "quality": {"error_share": 0.5, "unscored": "keep"},
        }
    )
    assert DistillConfig.model_validate(json.JSONDecoder().raw_decode(done.stdout)[0]) == expected


def test_settings_of_teaching_are_one_config_too(tmp_path: Path) -> None:
    words = ["teach", "tasks.jsonl", "--team", "t.py:build", "--out", "traces", "--price-in", "2", "--dry-run"]
    done = CliRunner().invoke(app, [*words, "--set", "jobs=3", "--time-limit", "60"])
    assert done.exit_code == 0, done.output
    settings = TeachConfig.model_validate_json(done.stdout)
    assert settings == TeachConfig(team="t.py:build", price=Price(input=2), jobs=3, time_limit_s=60)


def test_a_world_is_for_the_team_of_the_world(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="--world is for --team world"):
        teach(TeachConfig(team="t.py:build", world="atlas"), [], tmp_path)
    with pytest.raises(RecordingError, match="needs a world"):
        teach(TeachConfig(team="world"), [], tmp_path)


def test_every_format_is_described_and_named_once() -> None:
    names = [known.name for known in FORMATS]
    assert len(names) == len(set(names)) and all(known.description for known in FORMATS)
    assert all((known.read is None) is not (known.read_file is None) for known in FORMATS)
