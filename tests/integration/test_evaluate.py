"""`coa eval`, `coa score` and `coa compare` as a user calls them, against a server on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from coa.benchmarks.data import load
from coa.cli import app
from coa.compare.page import look
from coa.distill.atif_writer import to_atif
from coa.distill.cost import count_team_tokens
from coa.errors import CoaError, FolderError
from coa.evaluate.folder import Folder
from coa.models.tokenizer import load_tokenizer
from coa.scoring import scorer_for
from coa.scoring.code.problem import Problem, problem_of
from coa.trajectory import Step, Task, Trajectory, Usage, read, write
from coa.trajectory.types import CodeTests, TestCase
from support.exams import ExamServer, write_tasks
from support.servers import in_thread
from support.told_teams import tower

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


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
    write_tasks(tmp_path / "exam.jsonl", 20)


def coa(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, CoaError):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.stdout


def evaluated(url: str, *more: object, out: str = "e", code: int = 1) -> dict[str, Any]:
    """Exit code 1, because the exam has runs that fail."""
    given = ("eval", "exam.jsonl", "--model", url, "--profile", "nano", "--out", out, "--json", *more)
    report: dict[str, Any] = json.loads(coa(*given, code=code))
    return report


def test_every_task_counts_whatever_became_of_it(url: str) -> None:
    found = evaluated(url)["results"]
    # Twenty tasks: ten right, six wrong, two without an answer, two broken. 10 / 20, not 10 / 16.
    counts = {name: found[name] for name in ("tasks", "attempts", "right", "unanswered", "failed", "unscored")}
    assert counts == {"tasks": 20, "attempts": 20, "right": 10, "unanswered": 2, "failed": 2, "unscored": 0}
    assert found["metrics"]["pass@1"]["value"] == 0.5


def test_the_report_says_where_its_numbers_come_from(url: str) -> None:
    report = evaluated(url, "--price-in", 1, "--price-out", 2, "--seed", 6, "--limit", 8, code=0)
    told = report["provenance"]
    assert told["model"] == "tiny" and told["sampling"]["seed"] == 6 and told["tools"]["cache"] == "off"
    assert report["benchmark"]["sha256"] == load("exam.jsonl").sha256 and report["benchmark"]["tasks"] == 8
    assert told["versions"]["coa"] and told["profile"]["name"] == "nano" and told["limit"] == 8
    # The server counts 7 read (2 cached) and 3 written for each call; 8 calls, 5 right.
    assert report["spent"]["per_success"]["total_tokens"] == 8 * 10 / 5
    assert report["spent"]["per_success"]["cached_tokens"] == 8 * 2 / 5
    assert report["spent"]["total"]["cost"] == pytest.approx(8 * (7 * 1 + 3 * 2) / 1e6)
    assert {name: group["right"] for name, group in report["breakdown"]["level"].items()} == {"0": 3, "1": 2}
    page = Path("e/report.html").read_text()
    assert 'class="bars"' in page and "By level" in page
    assert page.count("http://") == page.count("http://127.0.0.1:8090/#/folder/") == 1, "only the link to the viewer"


def test_an_evaluation_that_is_done_asks_nothing_and_says_the_same(server: ExamServer, url: str) -> None:
    first = evaluated(url)
    asked, before = len(server.asked), Path("e/trajectories.jsonl").read_bytes()
    assert evaluated(url) == first and len(server.asked) == asked
    assert Path("e/trajectories.jsonl").read_bytes() == before and not Path("e/scores.jsonl").exists()


def test_it_grows_to_more_tasks_and_more_attempts(server: ExamServer, url: str) -> None:
    evaluated(url, "--limit", 8, code=0)
    asked = len(server.asked)
    more = evaluated(url, "-n", 2, "--limit", 8, code=0)
    assert len(server.asked) == 2 * asked and more["results"]["attempts"] == 16
    # Task 4 is right at the first attempt and wrong at the second.
    assert more["results"]["metrics"]["pass@2"]["value"] == 5 / 8
    assert more["results"]["metrics"]["avg@2"]["value"] == 4.5 / 8
    fewer = evaluated(url, "--limit", 4, code=0)
    assert fewer["results"]["attempts"] == 4 and fewer["results"]["metrics"]["pass@1"]["value"] == 1.0


def test_another_evaluation_is_refused_its_folder(url: str) -> None:
    evaluated(url, "--limit", 2, code=0)
    with pytest.raises(CoaError, match=r"other settings: sampling was .* and is now"):
        evaluated(url, "--temperature", 0)
    with pytest.raises(CoaError, match="coa score e --scorer exact"):
        evaluated(url, "--scorer", "exact")
    Path("exam.jsonl").write_text('{"question": "Else?", "answer": "x"}\n')
    with pytest.raises(CoaError, match="other settings: benchmark was"):
        evaluated(url)


def test_two_processes_do_not_share_a_folder(server: ExamServer, url: str) -> None:
    evaluated(url, "--limit", 2, code=0)
    asked = len(server.asked)
    with Folder(Path("e")).held():  # as a process that evaluates does
        with pytest.raises(FolderError, match=f"in use by this process already .pid {os.getpid()} on"):
            evaluated(url, "--limit", 4)
        with pytest.raises(FolderError, match="in use"):
            coa("score", "e", "--scorer", "exact", "--in-place")
    assert len(server.asked) == asked
    assert evaluated(url, "--limit", 4, code=0)["results"]["attempts"] == 4


def test_failed_runs_are_tried_again_only_on_request_and_that_is_told(server: ExamServer, url: str) -> None:
    evaluated(url)
    server.well = True
    assert evaluated(url)["results"]["failed"] == 2
    again = evaluated(url, "--retry-failed", code=0)
    assert again["results"]["failed"] == 0 and again["runs_tried_again_on_request"] == 2


def test_runs_that_broke_are_in_the_denominator_of_a_comparison_too(url: str) -> None:
    evaluated(url)
    found = json.loads(coa("compare", "e", "--json"))["runs"][0]
    # As in its own report: two of twenty broke before their first step.
    assert found["results"]["tasks"] == 20 and found["results"]["failed"] == 2 and found["notes"] == []
    assert found["results"]["metrics"]["pass@1"]["value"] == 0.5


def test_failed_runs_beyond_the_limit_are_not_set_aside(url: str) -> None:
    evaluated(url)
    few = evaluated(url, "--limit", 12, "--retry-failed", code=1)
    assert few["results"]["attempts"] == 12 and few["runs_tried_again_on_request"] == 1  # t9, not t19
    found = json.loads(coa("compare", "e", "--json"))["runs"][0]
    # 10 of all 20 are right; without the failed ones it would be 10 of 18.
    assert found["results"]["metrics"]["pass@1"]["value"] == 0.5 and found["notes"] == []


def test_an_evaluation_that_was_killed_is_compared_and_that_is_told(url: str) -> None:
    evaluated(url, "--limit", 6, code=0)
    lines = Path("e/trajectories.jsonl").read_text().splitlines()
    Path("e/trajectories.jsonl").write_text("".join(line + "\n" for line in lines[:4]))
    Path("e/scores.jsonl").write_text('{"task": "t0", "sample": 0, "scores": {"exact": {"value": 1.0}}}\n')
    found = json.loads(coa("compare", "e", "--json"))["runs"][0]
    assert found["notes"] == ["not finished: 2 of 6 attempts are missing"]


def test_one_of_three_is_chosen_by_a_judge_once(server: ExamServer, url: str) -> None:
    more = ("--best-of", 3, "--select", "judge", "--judge", url, "--scorer", "exact", "--limit", 5)
    report = evaluated(url, *more, code=0)
    metrics = report["results"]["metrics"]
    # The judge takes the second attempt, which at task 4 is the wrong one; the majority takes a right one.
    assert metrics["best of 3 by judge"]["value"] == 4 / 5 and metrics["majority@3"]["value"] == 1.0
    # 15 attempts of 10 tokens for 4 tasks at which the chosen one is right.
    assert report["spent"]["per_chosen_success"]["total_tokens"] == 15 * 10 / 4
    assert report["benchmark"]["metric"] == "best of 3 by judge" and report["provenance"]["judge"]["model"] == "tiny"
    asked = len(server.asked)
    assert evaluated(url, *more, code=0) == report and len(server.asked) == asked
    assert {run.sample for run in read("e") if run.meta.get("selected")} == {1}


def test_more_attempts_are_chosen_from_anew(server: ExamServer, url: str) -> None:
    more = ("--select", "judge", "--judge", url, "--scorer", "exact", "--limit", 5)
    evaluated(url, "--best-of", 2, *more, code=0)
    server.picks = 1
    kept = evaluated(url, "--best-of", 3, *more, code=0)["results"]["metrics"]
    assert kept["best of 3 by judge"]["value"] == 1.0
    server.picks = 4
    grown = evaluated(url, "--best-of", 4, *more, code=0)
    # Of four, the judge takes the last: what it took of two is no choice among four.
    assert {run.sample for run in read("e") if run.meta.get("selected")} == {3}
    assert grown["benchmark"]["metric"] == "best of 4 by judge"
    assert grown["results"]["metrics"]["best of 4 by judge"]["value"] == 4 / 5
    asked = len(server.asked)
    assert evaluated(url, "--best-of", 4, *more, code=0) == grown and len(server.asked) == asked


def test_a_judge_decides_and_its_agreement_with_exact_match_is_told(url: str) -> None:
    report = evaluated(url, "--scorer", "judge", "--judge", url, "--limit", 8, code=0)
    assert report["results"]["right"] == 5 and report["agreement"]["exact"]["rate"] == 1.0
    assert report["provenance"]["judge"]["prompt_hash"]


def test_what_no_judge_could_read_is_unscored_until_it_is_scored_again(server: ExamServer, url: str) -> None:
    server.babbles = True
    report = evaluated(url, "--scorer", "judge", "--judge", url, "--limit", 4, code=0)
    assert report["results"]["unscored"] == 4 and report["results"]["metrics"]["pass@1"]["value"] == 0.0
    assert report["results"]["success_if_all_unscored_were_right"] == 1.0
    server.babbles = False
    told = json.loads(coa("score", "e", "--scorer", "judge", "--judge", url, "--unscored", "--in-place", "--json"))
    assert told[0]["scored_now"] == 4 and told[0]["right"] == 4
    assert json.loads(Path("e/report.json").read_text())["results"]["metrics"]["pass@1"]["value"] == 1.0


def test_scores_are_kept_unless_they_are_replaced(url: str) -> None:
    evaluated(url)
    Path("mine.py").write_text("def strict(task, answer):\n    return 0.0\n")
    asked = json.loads(coa("score", "e", "--scorer", "mine:strict", "--in-place", "--json"))
    assert asked[0] | {"agreement": 0} == {
        "run": "e", "out": "e", "scorer": "mine:strict", "runs": 20, "right": 0, "failed": 2, "unscored": 0,
        "scored_now": 20, "kept": 0, "agreement": 0, "report": "e/report.html",
    }  # fmt: skip
    report = json.loads(Path("e/report.json").read_text())
    assert report["scorer"] == "mine:strict" and report["results"]["right"] == 0
    assert {tuple(sorted(run.scores)) for run in read("e")} == {("auto", "mine:strict")}
    assert json.loads(coa("score", "e", "--scorer", "mine:strict", "--in-place", "--json"))[0]["kept"] == 20
    assert (
        json.loads(coa("score", "e", "--scorer", "mine:strict", "--replace", "--in-place", "--json"))[0]["scored_now"]
        == 20
    )
    assert evaluated(url)["scorer"] == "auto"  # the evaluation itself goes on with its own


def test_a_file_of_trajectories_is_scored_in_place_if_asked_for(url: str) -> None:
    evaluated(url, "--limit", 3, code=0)
    Path("e/trajectories.jsonl").rename("runs.jsonl")
    assert "3 of 3 right by exact" in coa("score", "runs.jsonl", "--scorer", "exact", "--in-place")
    assert all(run.scores["exact"].value == 1.0 for run in read("runs.jsonl"))
    assert sorted(path.name for path in Path().glob("runs*")) == ["runs.jsonl"]


def test_runs_stay_as_they_are_and_a_scored_copy_is_written_beside_them(url: str) -> None:
    evaluated(url, "--limit", 3, code=0)
    before = {path: path.read_bytes() for path in Path("e").iterdir() if path.is_file()}
    assert "written to e-scored/report.html" in coa("score", "e", "--scorer", "f1")
    assert {path: path.read_bytes() for path in before} == before
    assert all({"auto", "f1"} <= set(run.scores) for run in read("e-scored"))
    Path("runs.jsonl").write_bytes(before[Path("e/trajectories.jsonl")])
    assert "written to runs.scored.jsonl" in coa("score", "runs.jsonl", "--scorer", "exact")
    assert Path("runs.jsonl").read_bytes() == before[Path("e/trajectories.jsonl")]
    assert all(run.scores["exact"].value == 1.0 for run in read("runs.scored.jsonl"))
    coa("score", "runs.jsonl", "--scorer", "f1", "--out", "deep/er/mine.jsonl")
    assert all(run.scores["f1"].value == 1.0 for run in read("deep/er/mine.jsonl"))


def test_a_scored_copy_goes_on_and_is_never_mixed_with_other_runs(url: str) -> None:
    evaluated(url, "--limit", 3, code=0)
    runs = list(read("e"))
    write("runs.jsonl", runs[:2])
    coa("score", "runs.jsonl", "--scorer", "exact")
    write("runs.jsonl", runs[2:])  # the file grew
    (again,) = json.loads(coa("score", "runs.jsonl", "--scorer", "exact", "--json"))
    assert (again["runs"], again["kept"], again["scored_now"]) == (3, 2, 1)
    write("other.jsonl", runs[:1])
    with pytest.raises(CoaError, match="holds other runs than other"):
        coa("score", "other.jsonl", "--scorer", "exact", "--out", "runs.scored.jsonl")
    with pytest.raises(CoaError, match="would be rewritten"):
        coa("score", "runs.jsonl", "--scorer", "exact", "--out", "runs.jsonl")


def test_a_scorer_that_does_not_exist_is_refused_before_a_server_is_asked(server: ExamServer, url: str) -> None:
    asked = len(server.asked)
    with pytest.raises(CoaError, match="there is no scorer 'vibes'"):
        coa("eval", "exam.jsonl", "--model", url, "--profile", "nano", "--scorer", "vibes", "--out", "v")
    with pytest.raises(CoaError, match="there is no scorer 'vibes'"):
        coa("score", "exam.jsonl", "--scorer", "vibes", "--judge", url)
    with pytest.raises(CoaError, match="there is no file or folder nope"):
        coa("score", "nope", "--scorer", "exact")
    assert len(server.asked) == asked and not Path("v").exists()


def test_a_scorer_that_gives_no_verdict_on_anything_is_a_warning(url: str, caplog: pytest.LogCaptureFixture) -> None:
    Path("mute.py").write_text("def none(task, answer):\n    return None\n")
    evaluated(url, "--limit", 3, "--scorer", "mute:none", code=0)
    assert "mute:none gave no verdict on any attempt" in caplog.text and "returned None" in caplog.text
    caplog.clear()
    coa("score", "e", "--scorer", "mute:none", "--replace")
    assert "mute:none gave no verdict on any attempt" in caplog.text


def test_a_figure_by_sample_tests_alone_says_so(url: str) -> None:
    tests = {"cases": [{"stdin": "3", "expected": "Ada 1"}]}
    row = {"id": "p1", "question": "Who is person 1?\nSample input: 3\nSample output: Ada 1", "tests": tests}
    Path("programs.jsonl").write_text(json.dumps(row) + "\n")
    release = {"question_id": "p1", "public_test_cases": [], "private_test_cases": [{"input": "4", "output": "8"}]}
    Path("release.jsonl").write_text(json.dumps(release) + "\n")
    given = ("eval", "programs.jsonl", "--model", url, "--profile", "nano", "--scorer", "exact")
    shown = coa(*given, "--out", "s")
    assert "judged by sample tests only" in shown and "cannot be compared with published ones" in shown
    assert json.loads(Path("s/report.json").read_text())["benchmark"]["sample_tests_only"] == 1
    assert "cannot be compared with published ones" in Path("s/report.html").read_text()
    assert "sample" not in coa(*given, "--tests", "release.jsonl", "--out", "f")
    assert next(iter(read("f"))).task.tests == CodeTests(cases=(TestCase(stdin="4", expected="8"),))
    with pytest.raises(CoaError, match="no task here has tests"):
        coa("eval", "exam.jsonl", "--model", url, "--tests", "release.jsonl", "--out", "x")


def test_several_benchmarks_have_a_folder_each_and_are_compared_together(url: str) -> None:
    write_tasks(Path("second.jsonl"), 5)
    common = ("--model", url, "--profile", "nano", "--limit", 5)
    coa("eval", "exam.jsonl", "second.jsonl", *common, "--out", "a")
    coa("eval", "exam.jsonl", "second.jsonl", *common, "--temperature", 0, "--out", "b")
    found = json.loads(coa("compare", "a", "b", "--json"))
    # What the page says to type shows the run that it is about.
    assert "Who is person 1?" in coa(*shlex.split(look(["a"], "exam/t1"))[1:])
    assert found["shared_tasks"] == 10 and [run["results"]["tasks"] for run in found["runs"]] == [10, 10]
    assert Path("comparison/report.html").is_file() and Path("a/second/report.json").is_file()


def test_one_benchmark_and_several_do_not_share_a_folder(server: ExamServer, url: str) -> None:
    write_tasks(Path("second.jsonl"), 5)
    common = ("--model", url, "--profile", "nano", "--limit", 2)
    coa("eval", "exam.jsonl", "second.jsonl", *common, "--out", "a")
    coa("eval", "exam.jsonl", *common, "--out", "b")
    asked = len(server.asked)
    with pytest.raises(CoaError, match=r"several(.|\n)*--out a/exam"):
        coa("eval", "exam.jsonl", *common, "--out", "a")
    with pytest.raises(CoaError, match="holds the evaluation of one benchmark"):
        coa("eval", "exam.jsonl", "second.jsonl", *common, "--out", "b")
    assert len(server.asked) == asked
    coa("eval", "exam.jsonl", *common, "--out", "a/exam")  # goes on there


def test_runs_told_right_by_different_scorers_are_compared_with_a_word_about_it(url: str) -> None:
    evaluated(url, "--limit", 3, code=0)
    evaluated(url, "--limit", 3, "--scorer", "exact", out="f", code=0)
    notes = [run["notes"] for run in json.loads(coa("compare", "e", "f", "--json"))["runs"]]
    assert all("scored by auto and exact" in note and "--scorer" in note for (note,) in notes)
    alike = json.loads(coa("compare", "e", "f", "--scorer", "exact", "--json"))["runs"]
    assert [run["notes"] for run in alike] == [[], []]


def test_runs_whose_tokens_nobody_counted_are_not_free(url: str) -> None:
    evaluated(url, "--limit", 3, code=0)
    rows = [run.model_copy(update={"usage": Usage()}) for run in read("e")]
    Path("foreign.jsonl").write_text("".join(row.to_json() + "\n" for row in rows))
    (run,) = json.loads(coa("compare", "foreign.jsonl", "--json"))["runs"]
    assert run["notes"] == ["3 model calls were not metered; its tokens are a lower bound"]


def test_of_runs_that_are_there_twice_the_first_counts_and_that_is_told(url: str) -> None:
    evaluated(url, "--limit", 3, code=0)
    Path("slow_at_first.py").write_text(
        "import asyncio\nasync def judge(task, answer):\n"
        "    await asyncio.sleep(0 if answer == 'later' else 0.2)\n    return float(answer != 'later')\n"
    )
    first = list(read("e"))
    runs = [*first, *(run.model_copy(update={"steps": last(run, "later")}) for run in first)]
    Path("twice.jsonl").write_text("".join(run.to_json() + "\n" for run in runs))
    (run,) = json.loads(coa("compare", "twice.jsonl", "--scorer", "slow_at_first:judge", "--json"))["runs"]
    assert run["results"]["attempts"] == 3 and run["results"]["right"] == 3
    assert run["notes"] == ["3 runs of a task and sample that came before are left out"]


def last(run: Trajectory, answer: str) -> tuple[Step, ...]:
    return (*run.steps[:-1], run.steps[-1].model_copy(update={"text": answer, "surface": None}))


def test_a_team_and_a_model_are_compared_on_the_same_tasks_with_the_same_tokenizer(url: str) -> None:
    evaluated(url, "--limit", 6, code=0)
    Path("team").mkdir()
    for number in range(4):
        task = Task(id=f"t{number}", question=f"Who is person {number}?", answer=f"Ada {number}")
        run = tower().model_copy(update={"task": task})
        root = run.root.model_copy(update={"answer": f"Ada {number}" if number else "Bob"})
        Path(f"team/{number}.json").write_text(json.dumps(to_atif(run.model_copy(update={"root": root}))))
    found = json.loads(coa("compare", "e", "team", "--json"))
    model, team = found["runs"]
    assert found["shared_tasks"] == 4 and (model["kind"], team["kind"]) == ("model", "team")
    assert (model["results"]["right"], team["results"]["right"]) == (4, 3)
    # The team's servers counted 12 calls of 1,050 tokens for each task.
    assert team["tokens_per_success"]["value"] == 4 * 12 * 1_050 / 3 and model["tokens_per_success"]["value"] == 10
    assert set(team["agents"]["share"]) == {"manager", "search_agent", "checker"}
    (pair,) = found["pairs"]
    assert pair["only_first"] == ["t0"] and "coa inspect team --task t0" in Path("comparison/report.html").read_text()
    shown = coa("compare", "e", "team", "--tokenizer", "smollm2")
    assert "each counted once" in shown and "tokens per success" in shown
    again = json.loads(coa("compare", "e", "team", "--tokenizer", "smollm2", "--json"))["runs"]
    counted = count_team_tokens(tower(), load_tokenizer("smollm2"))
    assert again[1]["spent"]["total"]["completion_tokens"] == 4 * sum(counted.written.values())
    assert again[0]["spent"]["total"]["sequence_tokens"] < again[0]["spent"]["total"]["total_tokens"] + 1


def test_benchmarks_are_listed_with_what_is_here() -> None:
    Path("data").mkdir()
    Path("data/amc23.jsonl").write_text('{"question": "?", "answer": "1"}\n')
    rows = {row["name"]: row for row in json.loads(coa("eval", "list", "--data", "data", "--json"))}
    assert rows["amc23"]["here"] and not rows["gaia"]["here"] and rows["gaia"]["gated"]
    assert rows["aime25"]["metric"] == "avg@16" and rows["browsecomp"]["size"] == 1266
    assert "gaia-benchmark/GAIA (gated)" in coa("eval", "list")


def test_a_benchmark_is_kept_out_of_training_data_by_its_name(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("data").mkdir()
    Path("data/bamboogle.jsonl").write_text('{"question": "How tall is the tower?", "answer": "330 m"}\n')
    monkeypatch.setenv("COA_DATA", "data")
    Path("team.json").write_text(json.dumps(to_atif(tower())))
    with pytest.raises(CoaError, match="nothing was kept"):
        coa("distill", "team.json", "--out", "kept", "--decontaminate", "bamboogle")
    assert json.loads(Path("kept/report.json").read_text())["benchmark_questions"] == 1


@pytest.mark.parametrize(
    "given",
    [
        ["exam.jsonl", "--model", "x"],
        ["exam.jsonl", "--out", "e", "--best-of", "3", "-n", "4"],
        ["exam.jsonl", "--out", "e", "--best-of", "3", "--select", "lot"],
        ["exam.jsonl", "--out", "e", "--cache-file", "f"],
    ],
)
def test_misuse_is_told_with_code_2(given: list[str]) -> None:
    assert CliRunner().invoke(app, ["eval", *given]).exit_code == 2


def test_more_attempts_are_asked_for_where_a_metric_needs_them(url: str) -> None:
    with pytest.raises(CoaError, match=r"pass@8 needs 8 attempts(.|\n)*add -n 8"):
        evaluated(url, "-n", 4, "--k", 8)


def test_a_judge_that_is_needed_is_asked_for(url: str) -> None:
    with pytest.raises(CoaError, match="add --judge URL"):
        evaluated(url, "--scorer", "judge")


def test_what_one_benchmark_lacks_is_told_before_another_is_run(server: ExamServer, url: str) -> None:
    Path("data").mkdir()
    Path("data/gaia.jsonl").write_text('{"question": "?", "answer": "1"}\n')
    with pytest.raises(CoaError, match=r"gaia(.|\n)*add --judge URL"):
        coa("eval", "exam.jsonl", "gaia", "--data", "data", "--model", url, "--profile", "nano", "--out", "e")
    assert not server.asked and not Path("e").exists()


def test_programs_are_not_chosen_by_a_vote(server: ExamServer, url: str) -> None:
    Path("code.jsonl").write_text('{"question": "?", "tests": {"cases": [{"stdin": "", "expected": "1"}]}}\n')
    with pytest.raises(CoaError, match=r"programs(.|\n)*--select self-check"):
        coa("eval", "code.jsonl", "--best-of", 3, "--model", url, "--out", "e")
    assert not server.asked


def oracle(problem: Problem) -> str:
    """A program that knows its tests by heart: right on its own problem, wrong on any other."""
    if problem.function is None:
        known = {case.stdin.strip(): case.expected for case in problem.cases}
        return f"import sys\nprint({known!r}.get(sys.stdin.read().strip(), 'unknown'))"
    known = {repr(list(case.arguments or ())): case.expected for case in problem.cases}
    return (
        f"class Solution:\n    def {problem.function}(self, *given):\n"
        f"        return {known!r}.get(repr(list(given)), 'unknown')"
    )


@pytest.mark.skipif(not SHARED.is_dir(), reason="the benchmark files are not here")
def test_programs_that_fit_a_livecodebench_problem_are_right_on_it_and_wrong_on_its_neighbour() -> None:
    async def go() -> list[tuple[float | None, float | None]]:
        scorer, found = scorer_for("code"), []
        try:
            for functional in (False, True):
                listed = sorted(
                    (
                        (len(problem.model_dump_json()), task, problem)
                        for task in load("livecodebench-v5", SHARED).tasks
                        if (problem := problem_of(task))
                        and problem.cases
                        and (problem.function is not None) is functional
                    ),
                    key=lambda row: (row[0], row[1].id),
                )
                for at in range(3):
                    (_, task, problem), (_, _, other) = listed[at], listed[at + 1]
                    own, foreign = (f"```python\n{oracle(item)}\n```" for item in (problem, other))
                    found.append(((await scorer.score(task, own)).value, (await scorer.score(task, foreign)).value))
        finally:
            await scorer.close()
        return found

    assert asyncio.run(go()) == [(1.0, 0.0)] * 6
