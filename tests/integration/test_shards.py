"""`--shard i/n` as users give it: run, evaluate, sample and distil in parts, against a server on loopback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from coa.cli import app
from coa.errors import CoaError, FolderError
from coa.shard import Shard
from coa.trajectory import read
from coa.trajectory.formats.tasks import read_tasks
from support.distilled import good
from support.exams import ExamServer, write_tasks
from support.servers import FakeServer, in_thread

TASKS = 20
PARTS = 3


@pytest.fixture
def server() -> ExamServer:
    return ExamServer()


@pytest.fixture
def url(server: ExamServer) -> Iterator[str]:
    with in_thread(server) as address:
        yield address


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    write_tasks(tmp_path / "exam.jsonl", TASKS)


def coa(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, CoaError):
        raise result.exception
    assert result.exit_code == code, result.output + result.stderr
    return result.stdout


def ids(file: str | Path) -> list[str]:
    return sorted(run.task.id for run in read(file))


def all_ids(times: int = 1) -> list[str]:
    return sorted(f"t{n}" for n in range(TASKS) for _ in range(times))


def evaluated(url: str, *more: object, out: str) -> dict[str, Any]:
    result = CliRunner().invoke(
        app, ["eval", "exam.jsonl", "--model", url, "--profile", "nano", "--out", out, "--json", *map(str, more)]
    )
    if isinstance(result.exception, CoaError):
        raise result.exception
    assert result.exit_code in (0, 1), result.output  # 1 where a run of the part fails
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def test_runs_of_all_shards_are_the_runs_of_all_tasks(url: str) -> None:
    found = []
    for n in range(1, PARTS + 1):
        arguments = ("run", "--tasks", "exam.jsonl", "--samples", 2, "--model", url, "--profile", "nano")
        CliRunner().invoke(app, [str(a) for a in (*arguments, "--shard", f"{n}/{PARTS}", "--out", f"r{n}.jsonl")])
        mine = ids(f"r{n}.jsonl")
        assert mine and all(mine.count(task) == 2 for task in mine), "all attempts at a task are in one shard"
        found += mine
    assert sorted(found) == all_ids(2)


def test_a_file_of_another_shard_is_refused_before_anything_is_asked(server: ExamServer, url: str) -> None:
    given = ("run", "--tasks", "exam.jsonl", "--model", url, "--profile", "nano", "--out", "r.jsonl", "--limit", 8)
    coa(*given, "--shard", "3/3")
    asked = len(server.asked)
    with pytest.raises(FolderError, match="not of the shard 2/3") as caught:
        coa(*given, "--shard", "2/3")
    assert caught.value.hint == "give each shard a separate --out" and len(server.asked) == asked
    coa(*given)  # without a shard the rest is run
    assert ids("r.jsonl") == sorted(f"t{n}" for n in range(8))


def test_a_shard_of_an_evaluation_keeps_its_folder(url: str) -> None:
    report = evaluated(url, "--shard", "1/3", out="e1")
    assert report["provenance"]["shard"] == {"part": "1/3", "tasks_of_all": TASKS}
    assert report["results"]["tasks"] == len(ids("e1")) < TASKS and report["complete"]
    assert all(Shard(1, 3).holds(task) for task in ids("e1"))
    with pytest.raises(FolderError, match=r"shard was '1/3' and is now '2/3'") as caught:
        evaluated(url, "--shard", "2/3", out="e1")
    assert caught.value.hint == "give each shard a separate --out; coa eval merge adds them up"
    with pytest.raises(FolderError, match=r"shard was '1/3' and is now None"):
        evaluated(url, out="e1")
    assert evaluated(url, "--shard", "1/3", out="e1") == report


def test_a_limit_comes_before_the_shards(url: str) -> None:
    found = [evaluated(url, "--limit", 8, "--shard", f"{n}/3", out=f"e{n}")["results"]["tasks"] for n in (1, 2, 3)]
    assert sum(found) == 8
    more = evaluated(url, "--shard", "2/3", out="e2")  # it may grow, as the folder of a whole evaluation may
    assert more["provenance"]["shard"]["tasks_of_all"] == TASKS


def test_a_shard_without_a_task_is_done_at_once(server: ExamServer, url: str) -> None:
    empty = next(n for n in range(1, 101) if not any(Shard(n, 100).holds(f"t{k}") for k in range(TASKS)))
    report = evaluated(url, "--shard", f"{empty}/100", out="e")
    assert report["complete"] and report["results"]["tasks"] == 0 and not server.asked
    shown = coa("eval", "exam.jsonl", "--model", url, "--profile", "nano", "--shard", f"{empty}/100", "--dry-run")
    assert f"exam, shard {empty}/100: 0 tasks" in shown
    coa("run", "--tasks", "exam.jsonl", "--model", url, "--shard", f"{empty}/100", "--out", "r.jsonl")
    coa("sample", "exam.jsonl", "--model", url, "--profile", "nano", "--shard", f"{empty}/100", "--out", "s.jsonl")


def test_a_dry_run_shows_the_shard(url: str) -> None:
    plan = json.loads(coa("eval", "exam.jsonl", "--model", url, "--shard", "2/3", "--dry-run", "--json"))
    assert plan["config"]["shard"] == "2/3" and plan["plan"]["benchmarks"][0]["shard"] == "2/3"
    assert plan["plan"]["benchmarks"][0]["tasks"] == sum(Shard(2, 3).holds(f"t{n}") for n in range(TASKS))
    assert json.loads(coa("run", "--tasks", "exam.jsonl", "--shard", "2/3", "--dry-run"))["shard"] == "2/3"
    assert json.loads(coa("sample", "exam.jsonl", "--shard", "2/3", "--dry-run"))["shard"] == "2/3"
    for command in ("run", "eval", "sample", "distill"):
        assert "shard " in coa(command, "--settings")


@pytest.mark.parametrize("command", ["run", "eval", "sample", "distill"])
@pytest.mark.parametrize("wrong", ["0/4", "5/4", "x"])
def test_a_wrong_shard_is_a_misuse(command: str, wrong: str) -> None:
    result = CliRunner().invoke(app, [command, "exam.jsonl", "--shard", wrong, "--out", "o.jsonl"])
    assert result.exit_code == 2 and "shard" in result.stderr and "hint:" in result.stderr, result.stderr


def test_a_question_has_no_shards() -> None:
    result = CliRunner().invoke(app, ["run", "Who?", "--shard", "1/2"])
    assert result.exit_code == 2 and "--shard and --ray are for a file of tasks" in result.stderr


def half_right(body: dict[str, Any]) -> str:
    """Right at every second attempt, so that each task is worth RL."""
    said = str(body["messages"])
    if "nothing here to look things up" in said:
        return "<think>d</think>\n<answer>no</answer>"
    number = said.partition("Who is person ")[2].split("?")[0]
    return f"<think>d</think>\n<answer>{'Ada' if body['seed'] % 2 else 'Bob'} {number}</answer>"


def test_sampled_shards_add_up_to_the_tasks_that_are_kept_in_one() -> None:
    with in_thread(FakeServer(half_right, owner="somebody")) as url:
        given = ("sample", "exam.jsonl", "--model", url, "--profile", "nano", "-n", 2, "--seed", 0)
        coa(*given, "--out", "whole.jsonl")
        for n in range(1, PARTS + 1):
            coa(*given, "--shard", f"{n}/{PARTS}", "--out", f"s{n}.jsonl")
        with pytest.raises(FolderError, match="shard was '1/3' and is now '2/3'"):
            coa(*given, "--shard", "2/3", "--out", "s1.jsonl")
    parts = [task for n in range(1, PARTS + 1) for task in read_tasks(f"s{n}.jsonl")]
    whole = list(read_tasks("whole.jsonl"))
    assert len(whole) == TASKS and sorted(parts, key=lambda task: task.id) == sorted(whole, key=lambda task: task.id)


def test_distilled_shards_add_up_where_no_questions_are_alike() -> None:
    runs = [good(task_id=f"t{n}", question=f"{n}: {'abcdefghij'[n % 10] * 30} {n * 7919}?") for n in range(30)]
    Path("traces").mkdir()
    Path("traces/runs.jsonl").write_text("".join(run.to_json() + "\n" for run in runs))
    coa("distill", "traces", "--out", "whole")
    for n in range(1, PARTS + 1):
        coa("distill", "traces", "--shard", f"{n}/{PARTS}", "--out", f"d{n}")
        assert f"This is the shard {n}/3" in Path(f"d{n}/README.md").read_text()
    parts = [line for n in range(1, PARTS + 1) for line in read(f"d{n}/trajectories.jsonl")]
    assert sorted(parts, key=lambda run: run.task.id) == sorted(read("whole"), key=lambda run: run.task.id)
    with pytest.raises(FolderError, match="shard was '1/3' and is now '2/3'"):
        coa("distill", "traces", "--shard", "2/3", "--out", "d1")
    shown = coa("distill", "traces", "--shard", "2/3", "--dry-run")
    assert "shard 2/3: runs of the tasks that belong to it" in shown


def test_near_duplicates_in_different_shards_go_in_a_second_pass() -> None:
    asked = "what is the year of the founding of the harbour"
    runs = [
        good(task_id=f"t{n}", question=f"{n // 3}: {'abcdefghij'[n // 3] * 40} {asked} {'then' * (n % 3)}?")
        for n in range(30)
    ]
    Path("traces").mkdir()
    Path("traces/runs.jsonl").write_text("".join(run.to_json() + "\n" for run in runs))
    coa("distill", "traces", "--out", "whole")
    for n in range(1, PARTS + 1):
        coa("distill", "traces", "--shard", f"{n}/{PARTS}", "--out", f"d{n}")
    found = [run.task.id for n in range(1, PARTS + 1) for run in read(f"d{n}")]
    assert len(ids("whole")) == 10 < len(found), "each shard keeps one of them"
    coa("distill", "d1", "d2", "d3", "--keep-unscored", "--out", "joined")
    assert ids("joined") == ids("whole")


# ---- several folders add up


def in_shards(url: str, *more: object, parts: int = PARTS, name: str = "e") -> list[str]:
    """The folders of an evaluation in shards."""
    folders = [f"{name}-{n}" for n in range(1, parts + 1)]
    for n, folder in enumerate(folders, 1):
        evaluated(url, "--shard", f"{n}/{parts}", *more, out=folder)
    return folders


def timeless(report: Any) -> Any:
    """A report without the times, which no two evaluations share."""
    if isinstance(report, dict):
        return {key: timeless(value) for key, value in report.items() if key != "timing" and "seconds" not in key}
    return [timeless(value) for value in report] if isinstance(report, list) else report


def merged(*folders: str, out: str = "m", code: int = 0) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(coa("eval", "merge", *folders, "--out", out, "--json", code=code))
    return report


@pytest.mark.parametrize("more", [(), ("-n", 2), ("--best-of", 3), ("-n", 3, "--k", 3, "--limit", 13)])
def test_the_report_over_shards_is_the_report_of_the_whole(url: str, more: tuple[object, ...]) -> None:
    whole = evaluated(url, "--price-in", 1, "--price-out", 2, *more, out="whole")
    folders = in_shards(url, "--price-in", 1, "--price-out", 2, *more)
    report = merged(*folders)
    assert timeless(report) == timeless(whole) and report["complete"]
    assert report == json.loads(Path("m/report.json").read_text()) and Path("m/report.html").is_file()
    assert json.loads(Path("m/config.json").read_text()) == json.loads(Path("whole/config.json").read_text())
    assert sorted(run.key for run in read("m")) == sorted(run.key for run in read("whole"))


def test_a_comparison_with_shards_is_the_comparison_with_the_whole(url: str) -> None:
    evaluated(url, "-n", 2, out="whole")
    evaluated(url, "--temperature", 0, out="other")
    folders = in_shards(url, "-n", 2)
    compared = [
        json.loads(coa("compare", "other", *side, "--out", f"c-{at}", "--json"))
        for at, side in enumerate([["whole"], folders])
    ]
    for comparison, name in zip(compared, ("whole", "e"), strict=True):
        assert comparison["runs"][1].pop("name") == name and not comparison["runs"][1]["notes"]
        assert [comparison["pairs"][0].pop(key) for key in ("first", "second")] == ["other", name]
        comparison["runs"][1].pop("path")
    assert [comparison["runs"][1].pop("shards") for comparison in compared] == [[], folders]
    assert timeless(compared[0]) == timeless(compared[1])
    assert f"coa inspect {' '.join(folders)} --task" in Path("c-1/report.html").read_text()


def test_a_folder_of_shards_is_the_evaluation(url: str) -> None:
    whole = evaluated(url, out="whole")
    in_shards(url, name="runs/e/s")
    assert timeless(merged("runs/e")) == timeless(whole)
    found = json.loads(coa("compare", "whole", "runs/e", "--json"))
    assert [run["name"] for run in found["runs"]] == ["whole", "s"] and found["shared_tasks"] == TASKS
    assert found["pairs"][0]["success"]["value"] == 0


def test_several_benchmarks_in_shards(url: str) -> None:
    write_tasks(Path("second.jsonl"), 7)
    reports = {}
    for out, *more in (["whole"], ["s-1", "--shard", "1/2"], ["s-2", "--shard", "2/2"]):
        command = ["eval", "exam.jsonl", "second.jsonl", "--model", url, "--profile", "nano", "--out", out, *more]
        assert CliRunner().invoke(app, command).exit_code in (0, 1)
        reports[out] = {name: json.loads(Path(out, name, "report.json").read_text()) for name in ("exam", "second")}
    found = {
        report["benchmark"]["name"]: report
        for report in json.loads(coa("eval", "merge", "s-1", "s-2", "--out", "m", "--json"))
    }
    assert timeless(found) == timeless(reports["whole"])
    compared = json.loads(coa("compare", "whole", "s-1", "s-2", "--json"))
    assert compared["shared_tasks"] == TASKS + 7 and len(compared["runs"]) == 2


def test_a_missing_shard_is_said_and_can_be_filled_in(server: ExamServer, url: str) -> None:
    one, two, three = in_shards(url)
    report = merged(one, three, code=1)
    lacking = len(ids(two))
    assert not report["complete"] and report["results"]["missing"] == lacking and report["results"]["tasks"] == TASKS
    assert report["notices"] == ["This report is not complete: 1 shard is missing: 2/3."]
    noted = json.loads(coa("compare", one, three, two, "--json"))["runs"][0]["notes"]
    assert noted == []
    noted = json.loads(coa("compare", one, three, "--json"))["runs"][0]["notes"]
    assert noted == ["1 shard is missing: 2/3", f"not finished: {lacking} of {TASKS} attempts are missing"]
    # The joined folder is an evaluation like any other: the rest is made in it.
    asked = len(server.asked)
    whole = evaluated(url, out="m")
    assert whole["complete"] and len(server.asked) - asked >= lacking > 0 and ids("m") == all_ids()
    # And now it holds more than the two shards.
    with pytest.raises(FolderError, match="m holds runs that are not in the shards"):
        merged(one, three)
    assert timeless(merged(one, two, three)) == timeless(whole) | {"notices": []}


def test_an_unfinished_shard_counts_what_it_has(server: ExamServer, url: str) -> None:
    folders = in_shards(url)
    lines = Path("e-2/trajectories.jsonl").read_text().splitlines(keepends=True)
    Path("e-2/trajectories.jsonl").write_text("".join(lines[:-1]))
    report = merged(*folders, code=1)
    assert report["results"]["missing"] == 1 and not report["complete"] and not report["notices"]
    evaluated(url, "--shard", "2/3", out="e-2")
    assert merged(*folders)["complete"], "the same command joins them again"


def test_shards_that_do_not_belong_together_are_refused(url: str) -> None:
    one, two, three = in_shards(url)
    for command in (["eval", "merge", "--out", "m"], ["compare", "--out", "c"], ["cost"]):
        with pytest.raises(CoaError, match="e-1 and copy are both the shard 1/3"):
            Path("copy").symlink_to(one, target_is_directory=True)
            try:
                coa(*command, one, two, "copy")
            finally:
                Path("copy").unlink()
    evaluated(url, "--shard", "3/4", out="quarter")
    with pytest.raises(CoaError, match="quarter is the shard 3/4 and e-1 the shard 1/3"):
        merged(one, two, "quarter")
    evaluated(url, "--shard", "3/3", "--temperature", 0, out="cold")
    with pytest.raises(CoaError, match="e-1 and cold are shards of different evaluations: sampling is"):
        merged(one, two, "cold")
    evaluated(url, "--shard", "3/3", "-n", 2, out="twice")
    with pytest.raises(CoaError, match="samples is 1 in one and 2 in the other"):
        merged(one, two, "twice")
    with pytest.raises(CoaError, match="there is no folder e-9") as caught:
        merged(one, two, "e-9")
    assert caught.value.hint == "check the spelling, and the folder in which you are"
    evaluated(url, out="whole")
    with pytest.raises(CoaError, match="whole is not a shard of an evaluation"):
        merged(one, "whole")
    with pytest.raises(CoaError, match="e-1 is one of the shards"):
        merged(one, two, three, out="e-1")
    with pytest.raises(CoaError, match="is of another run"):
        merged(one, two, three, out="cold")
    assert not Path("m").exists()


def test_scored_shards_are_joined_with_their_scores(url: str) -> None:
    folders = in_shards(url)
    evaluated(url, out="whole")
    coa("score", *folders, "whole", "--scorer", "f1")
    joined = merged(*(f"{folder}-scored" for folder in folders))
    assert timeless(joined) == timeless(json.loads(Path("whole-scored/report.json").read_text()))
    assert joined["scorer"] == "f1"


def test_every_reader_takes_the_shards(url: str) -> None:
    evaluated(url, out="whole")
    folders = in_shards(url, parts=30)  # more shards than tasks: some are empty
    assert any(not Path(folder, "trajectories.jsonl").stat().st_size for folder in folders)
    assert (
        timeless(merged(*folders))["results"] == timeless(json.loads(Path("whole/report.json").read_text()))["results"]
    )
    shown = [json.loads(line)["task"]["id"] for line in coa("inspect", *folders, "--json").splitlines()]
    assert sorted(shown) == all_ids()
    assert "e-" in coa("inspect", *folders, "--task", "t3", "--no-pager")
    coa("export", *folders, "--to", "trajectories", "--out", "all.jsonl")
    assert ids("all.jsonl") == all_ids()
    coa("export", *folders, "--to", "tasks", "--out", "tasks.jsonl")
    assert sorted(task.id for task in read_tasks("tasks.jsonl")) == all_ids()
    sums = [json.loads(coa("cost", *paths, "--json")) for paths in (["whole"], folders)]
    assert [row.pop("name") for (row,) in sums] == ["whole", "e"] and sums[0] == sums[1]
    scanned = [json.loads(coa("scan", *paths, "--json")) for paths in (["whole"], folders)]
    assert scanned[0]["runs"] == scanned[1]["runs"] == TASKS and scanned[0]["findings"] == scanned[1]["findings"]
    compared = json.loads(coa("compare", "whole", *folders, "--json"))
    assert compared["shared_tasks"] == TASKS and len(compared["runs"]) == 2
