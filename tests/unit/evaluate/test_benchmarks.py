"""Benchmarks: the real files where they are here, the published shapes, and what is said where nothing is."""

from __future__ import annotations

import asyncio
import base64
import csv
import hashlib
import json
import pickle
import zlib
from collections.abc import Mapping
from itertools import cycle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coa.benchmarks.data import cache_folder, found, listing, load, missing, samples_only
from coa.benchmarks.registry import Benchmark, benchmark_named, benchmarks, find_benchmark, register
from coa.benchmarks.row_shapes import deciphered
from coa.errors import EvaluationError, StoreError
from coa.scoring import score_trajectory, scorer_for, scorer_names
from coa.scoring.code.problem import problem_of
from coa.trajectory import Task, load_profile
from support.builders import make_trajectory

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"
here = pytest.mark.skipif(not SHARED.is_dir(), reason="the benchmark files are not here")


@pytest.fixture(autouse=True)
def _no_data_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("COA_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@here
@pytest.mark.parametrize(("name", "count"), [("aime24", 30), ("math500", 500), ("nq", 3610), ("livecodebench-v5", 167)])
def test_the_published_files_load_whole(name: str, count: int) -> None:
    loaded = load(name, SHARED)
    assert len(loaded.tasks) == count == loaded.benchmark.size
    assert len({task.id for task in loaded.tasks}) == count
    assert load(name, SHARED, limit=7).sha256 == loaded.sha256  # the data are the same, whatever part is run


@here
def test_livecodebench_has_both_kinds_of_tests() -> None:
    tests = [task.tests for task in load("livecodebench-v5", SHARED).tasks]
    functional = [test for test in tests if test and test.functional]
    assert (len(functional), len(tests) - len(functional)) == (62, 105)


def share_right(name: str, tasks: list[Task], answers: list[str]) -> float:
    async def go() -> float:
        scorer = scorer_for(name)
        try:
            runs = [
                make_trajectory(("answer", a)).model_copy(update={"task": t})
                for t, a in zip(tasks, answers, strict=True)
            ]
            values = [(await score_trajectory(run, scorer)).scores[scorer.name].value for run in runs]
        finally:
            await scorer.close()
        assert None not in values
        return sum(value or 0.0 for value in values) / len(values)

    return asyncio.run(go())


@here
@pytest.mark.parametrize(("name", "step", "most"), [("aime24", 1, 0.0), ("math500", 7, 0.06), ("nq", 1, 0.01)])
@pytest.mark.parametrize("scorer", ["own", "auto"])
def test_golds_are_right_and_neighbours_golds_are_not(name: str, step: int, most: float, scorer: str) -> None:
    loaded = load(name, SHARED)
    tasks = loaded.tasks[::step]
    golds = [task.answer[0] for task in tasks]
    by = loaded.benchmark.scorer if scorer == "own" else "auto"
    assert share_right(by, tasks, golds) == 1.0
    # Some neighbours do have the same answer: small numbers in MATH500, names in NQ.
    assert share_right(by, tasks, golds[1:] + golds[:1]) <= most


def test_every_benchmark_can_be_run() -> None:
    names = [benchmark.name for benchmark in benchmarks()]
    assert len(names) == len(set(names)) >= 19
    for benchmark in benchmarks():
        assert load_profile(benchmark.profile) and benchmark.scorer in scorer_names()
        assert benchmark.tasks or benchmark.hub or benchmark.url
        told = str(missing(benchmark))
        assert benchmark.name in told and "hint:" in told
    assert benchmark_named("LiveCodeBench_V5").name == "livecodebench-v5" and find_benchmark("2Wiki") is not None


AFM = {
    "gaia_dev_103.json": ("gaia", "web", "judge"),
    "hle_test.json": ("hle", "web", "judge"),
    "webwalker_main.json": ("webwalkerqa", "web", "judge"),
    "nq_full.jsonl": ("nq", "mhqa", "exact"),
    "codecontest.parquet": ("codecontests", "code", "code"),
    "OlympiadBench.parquet": ("olympiadbench", "math", "math"),
    "browsecomp.json": ("browsecomp", "web", "judge"),
    "livecodebench_v4.parquet": ("livecodebench-v4", "code", "code"),
}


@pytest.mark.parametrize("file", AFM)
def test_the_file_names_of_the_papers_repository_are_known(file: str, tmp_path: Path) -> None:
    path = tmp_path / file
    row = {"question": "Who?", "answer": "Ada"}
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist([row]), path)
    else:
        path.write_text(json.dumps([row]))
    benchmark = load(str(path)).benchmark
    assert (benchmark.name, benchmark.profile, benchmark.scorer) == AFM[file]
    assert found(benchmark, tmp_path) == [path]  # also as a folder of data


STATEMENT = "Task:\nPrint the double.\n\nSample Input 1\n\n3\n\nSample Output 1\n\n6\n"


def afm_row(number: int, **truth: object) -> dict[str, object]:
    """As in AFM's files of LiveCodeBench: the tests of the statement, and a question id."""
    return {
        "data_source": "skywork_livecodebench_v5",
        "prompt": [{"role": "user", "content": STATEMENT}],
        "ability": "coding",
        "reward_model": {"ground_truth": json.dumps({**truth, "question_id": f"abc{number}"}), "style": "rule"},
        "extra_info": {"index": f"abc{number}"},
    }


def official_row(number: int) -> dict[str, object]:
    """As in LiveCodeBench's release files."""
    private = [{"input": "21\n", "output": "42\n", "testtype": "stdin"}]
    return {
        "question_id": f"abc{number}",
        "question_content": STATEMENT,
        "public_test_cases": json.dumps([{"input": "3\n", "output": "6\n", "testtype": "stdin"}]),
        "private_test_cases": base64.b64encode(zlib.compress(pickle.dumps(json.dumps(private)))).decode(),
        "metadata": "{}",
    }


def test_sample_tests_are_known_as_such_and_full_tests_take_their_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "livecodebench_v5.jsonl"
    rows = [afm_row(n, stdin=["3\n"], expected_output=["6\n"]) for n in range(3)]
    rows.append(afm_row(3, functional="assert Solution().double(3) == 6"))
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    loaded = load(str(file))
    assert loaded.benchmark.name == "livecodebench-v5" and samples_only(loaded.tasks) == 4
    release = tmp_path / "release"
    release.mkdir()
    (release / "test4.jsonl").write_text(json.dumps(official_row(9)) + "\n")
    with pytest.raises(StoreError, match="holds no tests of any of these 4 tasks"):
        load(str(file), tests=release)
    (release / "test5.jsonl").write_text("".join(json.dumps(official_row(n)) + "\n" for n in (2, 0, 1)))
    full = load(str(file), tests=release)
    assert samples_only(full.tasks) == 1 and "1 of 4 tasks" in caplog.text
    assert [len(task.tests.cases) for task in full.tasks if task.tests] == [2, 2, 2, 0]
    assert full.sha256 != loaded.sha256  # another set of tests is another benchmark
    with pytest.raises(StoreError, match=r"does not exist(.|\n)*hint: give test.jsonl"):
        load(str(file), tests=tmp_path / "nowhere")


@here
def test_the_papers_files_of_livecodebench_hold_nothing_but_samples() -> None:
    tasks = load("livecodebench-v5", SHARED).tasks
    assert samples_only(tasks) == len(tasks) == 167


def test_another_packages_entry_point_is_a_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "exams-1.dist-info"
    info.mkdir()
    (tmp_path / "exams.py").write_text(
        "from coa.benchmarks import Benchmark\nfrom coa.trajectory import Task\n"
        "quiz = Benchmark('quiz', 'mine', 1, 'web', 'exact', tasks=lambda: [Task(id='q', question='Who?')])\n"
    )
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: exams\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[coa.benchmarks]\nquiz = exams:quiz\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert [task.id for task in load("quiz").tasks] == ["q"]
    assert "quiz" in [row["name"] for row in listing()]


def test_what_is_not_here_says_what_to_download_and_where_to_put_it() -> None:
    with pytest.raises(EvaluationError) as told:
        load("gaia")
    text = str(told.value)
    assert "hf download gaia-benchmark/GAIA" in text and "accept the terms" in text and "hf auth login" in text
    assert str(cache_folder() / "gaia") in text and "Final answer" in text
    with pytest.raises(EvaluationError, match="no benchmark or file 'gaja'"):
        load("gaja")
    with pytest.raises(StoreError, match="no file"):
        load("gaja.jsonl")


@pytest.mark.parametrize("place", ["option", "environment", "cache"])
def test_data_are_found_in_three_places(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = {"option": tmp_path / "a", "environment": tmp_path / "b", "cache": cache_folder()}[place]
    folder.mkdir(parents=True)
    (folder / "AIME_25.jsonl").write_text('{"problem": "1 + 1?", "answer": "2"}\n')
    if place == "environment":
        monkeypatch.setenv("COA_DATA", str(folder))
    loaded = load("aime25", folder if place == "option" else None)
    assert [task.question for task in loaded.tasks] == ["1 + 1?"] and loaded.files == ("AIME_25.jsonl",)


def test_what_the_hubs_command_left_is_found(tmp_path: Path) -> None:
    inside = tmp_path / "gaia" / "2023" / "validation"
    inside.mkdir(parents=True)
    rows = [
        {"task_id": "a", "Question": "With a file?", "Final answer": "1", "Level": 1, "file_name": "x.pdf"},
        {"task_id": "b", "Question": "Without?", "Final answer": "2", "Level": 2, "file_name": ""},
    ]
    (inside / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (inside / "other.jsonl").write_text("{}\n")
    (task,) = load("gaia", tmp_path).tasks
    assert (task.id, task.answer, task.meta["Level"]) == ("b", ("2",), 2)
    assert found(benchmark_named("gaia"), tmp_path) == [inside / "metadata.jsonl"]


def enciphered(text: str, password: str) -> str:
    key = hashlib.sha256(password.encode()).digest()
    return base64.b64encode(bytes(a ^ b for a, b in zip(text.encode(), cycle(key)))).decode()


def test_browsecomp_is_read_as_published_and_keeps_its_canary(tmp_path: Path) -> None:
    question, canary = "Which ship, built before 1900 and longer than its rival, ölig?" * 3, "canary GUID browsecomp:1"
    # By hand: SHA-256 of "a" begins with ca 97 81; "Hi!" XORed with it is 82 fe a0.
    assert deciphered(base64.b64encode(bytes([0x82, 0xFE, 0xA0])).decode(), "a") == "Hi!"
    with (tmp_path / "browse_comp_test_set.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["problem", "answer", "problem_topic", "canary"])
        writer.writerow([enciphered(question, canary), enciphered("Zoë", canary), "Art", canary])
    (task,) = load("browsecomp", tmp_path).tasks
    assert (task.question, task.answer, task.meta["topic"], task.meta["canary"]) == (question, ("Zoë",), "Art", canary)
    assert question not in (tmp_path / "browse_comp_test_set.csv").read_text()
    plain = tmp_path / "plain" / "browsecomp.json"
    plain.parent.mkdir()
    plain.write_text(json.dumps([{"question": "Who?", "answer": "Ada", "topic": "Art"}]))
    assert load("browsecomp", plain.parent).tasks[0].question == "Who?"


def test_a_cut_file_of_browsecomp_is_told(tmp_path: Path) -> None:
    (tmp_path / "browsecomp.csv").write_text("problem,answer,problem_topic,canary\nabc,xy,Art,c\n")
    with pytest.raises(StoreError, match="row 1 cannot be read: it cannot be deciphered"):
        load("browsecomp", tmp_path)


def test_livecodebench_is_read_as_published(tmp_path: Path) -> None:
    packed = base64.b64encode(
        zlib.compress(pickle.dumps(json.dumps([{"input": "3\n", "output": "6\n", "testtype": "stdin"}])))
    )
    stdin: Mapping[str, object] = {
        "question_id": "1", "question_content": "Double.", "difficulty": "easy", "starter_code": "",
        "public_test_cases": json.dumps([{"input": "1\n", "output": "2\n", "testtype": "stdin"}]),
        "private_test_cases": packed.decode(), "metadata": "{}",
    }  # fmt: skip
    called = dict(stdin) | {
        "question_id": "2", "starter_code": "class Solution:\n    def f(self, a, b):",
        "public_test_cases": json.dumps([{"input": "[1, 2]\n\"x\"", "output": "null", "testtype": "functional"}]),
        "private_test_cases": "[]", "metadata": json.dumps({"func_name": "f"}),
    }  # fmt: skip
    (tmp_path / "livecodebench-v5").mkdir()
    (tmp_path / "livecodebench-v5" / "test5.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in (stdin, called))
    )
    one, two = load("livecodebench-v5", tmp_path).tasks
    problem = problem_of(one)
    assert problem and [(case.stdin, case.expected) for case in problem.cases] == [("1\n", "2\n"), ("3\n", "6\n")]
    assert "private_test_cases" not in one.meta and one.meta["difficulty"] == "easy"
    problem = problem_of(two)
    assert problem and problem.function == "f" and problem.cases[0].arguments == ([1, 2], "x")
    assert problem.cases[0].expected is None and "class Solution" in two.question


def test_code_contests_are_read_as_published(tmp_path: Path) -> None:
    row = {
        "name": "1_A. Sum", "description": "Add.", "public_tests": {"input": ["1 2\n"], "output": ["3\n"]},
        "private_tests": {"input": [], "output": []}, "generated_tests": {"input": ["2 2\n"], "output": ["4\n"]},
        "solutions": {"solution": ["print(3)"]}, "difficulty": 7,
    }  # fmt: skip
    (tmp_path / "codecontests.jsonl").write_text(json.dumps(row) + "\n")
    (task,) = load("codecontests", tmp_path).tasks
    assert task.id == "1_A. Sum" and task.tests and len(task.tests.cases) == 2 and "solutions" not in task.meta


def test_hle_is_text_only(tmp_path: Path) -> None:
    rows = [
        {"id": n, "question": "?", "answer": "a", "image": "data:..." if n else "", "category": "Math"}
        for n in range(2)
    ]
    (tmp_path / "hle.json").write_text(json.dumps(rows))
    (task,) = load("hle", tmp_path).tasks
    assert task.id == "0" and "image" not in task.meta


def test_a_benchmark_may_come_from_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    from coa.benchmarks import registry as module

    monkeypatch.setattr(module, "_REGISTRY", dict(module._REGISTRY))
    register(
        Benchmark(
            "tiny-world",
            "made here",
            3,
            "nano",
            "exact",
            tasks=lambda: (Task(id=str(n), question="?") for n in range(3)),
        )
    )
    loaded = load("tiny-world", limit=2)
    assert len(loaded.tasks) == 2 and loaded.files == () and loaded.sha256 == load("tiny-world").sha256


def test_a_file_of_ones_own_is_a_benchmark_and_one_of_a_known_name_is_that_one(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text('{"question": "?", "answer": "a"}\n')
    (tmp_path / "aime2024.jsonl").write_text('{"problem": "?", "answer": "1"}\n')
    assert load(str(tmp_path / "mine.jsonl")).benchmark.scorer == "auto"
    assert load(str(tmp_path / "aime2024.jsonl")).benchmark.protocol.samples == 16
