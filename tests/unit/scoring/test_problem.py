"""Problems in the shapes in which they come."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from pathlib import Path

import pytest

import coa.scoring.code.problem as problem_module
from coa.benchmarks.row_shapes import livecodebench
from coa.errors import ScoringError
from coa.scoring.code import Case, problem_of, read_problem
from coa.scoring.code.problem import problem_from
from coa.trajectory import Task
from coa.trajectory.types import CodeTests

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"


def test_livecodebench_with_private_tests() -> None:
    public = [{"input": "[1, 2]\n3", "output": "[3]", "testtype": "functional"}]
    private = [{"input": "[]\n0", "output": "[]", "testtype": "functional"}]
    packed = base64.b64encode(zlib.compress(pickle.dumps(json.dumps(private)))).decode()
    problem = problem_from(
        {
            "question_id": "1",
            "public_test_cases": json.dumps(public),
            "private_test_cases": packed,
            "metadata": '{"func_name": "solve"}',
        }
    )
    assert problem.function == "solve"
    assert problem.cases == (Case(arguments=([1, 2], 3), expected=[3]), Case(arguments=([], 0), expected=[]))


def test_private_tests_that_would_run_code_are_refused() -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return exec, ("raise SystemExit('it ran')",)

    packed = base64.b64encode(zlib.compress(pickle.dumps(Bomb()))).decode()
    with pytest.raises(ScoringError, match="not data"):
        problem_from({"public_test_cases": "[]", "private_test_cases": packed})


def test_codecontests() -> None:
    problem = problem_from(
        {
            "name": "p",
            "public_tests": {"input": ["1\n"], "output": ["2\n"]},
            "private_tests": {"input": ["3\n"], "output": ["4\n"]},
            "time_limit": {"seconds": 4, "nanos": 500_000_000},
        }
    )
    assert [case.stdin for case in problem.cases] == ["1\n", "3\n"]
    assert problem.cpu_s == 9.0


def test_apps_and_taco_with_and_without_a_function() -> None:
    plain = problem_from({"input_output": json.dumps({"inputs": ["1\n"], "outputs": ["2\n"]})})
    assert plain.cases == (Case(stdin="1\n", expected="2\n"),)
    called = problem_from({"inputs": [[1, 2]], "outputs": [3], "fn_name": "add"})
    assert (called.function, called.cases) == ("add", (Case(arguments=(1, 2), expected=3),))


@pytest.mark.parametrize(
    ("text", "function", "cases"),
    [
        (
            'result = Solution().f([1, 2], "x")\nassert result == [3], f"Expected {result}"',
            "f",
            (Case(arguments=([1, 2], "x"), expected=[3]),),
        ),
        (
            "assert f(1) == 2\nassert f(-2) == None\n",
            "f",
            (Case(arguments=(1,), expected=2), Case(arguments=(-2,), expected=None)),
        ),
        (
            "assert f(1) is True\nassert f(2) is None\n",
            "f",
            (Case(arguments=(1,), expected=True), Case(arguments=(2,), expected=None)),
        ),
    ],
)
def test_plain_assertions_become_cases(text: str, function: str, cases: tuple[Case, ...]) -> None:
    problem = problem_of(Task(id="t", question="q", tests=CodeTests(functional=text)))
    assert problem is not None
    assert (problem.function, problem.cases, problem.assertions) == (function, cases, None)


def test_arguments_that_json_cannot_say_stay_python() -> None:
    problem = problem_of(Task(id="t", question="q", tests=CodeTests(functional="assert f((1, 2), {3}) == [1, 2]")))
    assert problem is not None
    assert problem.cases == (Case(arguments=(), literal="[(1, 2), {3}]", expected=[1, 2]),)


def test_tests_that_test_nothing_are_none() -> None:
    for tests in (CodeTests(), CodeTests(functional="# nothing"), CodeTests(functional="f(1)")):
        assert problem_of(Task(id="t", question="q", tests=tests)) is None


def test_large_integers_of_a_file_stay_integers(tmp_path: Path) -> None:
    path = tmp_path / "problem.json"
    path.write_text(json.dumps({"inputs": [[2**70]], "outputs": [2**70 + 1], "fn_name": "f"}))
    assert read_problem(path).cases == (Case(arguments=(2**70,), expected=2**70 + 1),)


def test_integers_of_any_number_of_digits_are_exact(tmp_path: Path) -> None:
    digits = "7" * 30_000
    path = tmp_path / "problem.json"
    path.write_text(f'{{"inputs": [[{digits}], [-{digits}]], "outputs": [{digits}, 1], "fn_name": "f"}}')
    first, second = read_problem(path).cases
    wanted = 7 * (10**30_000 - 1) // 9
    assert (first.arguments, first.expected, second.arguments) == ((wanted,), wanted, (-wanted,))
    test = {"input": digits, "output": digits, "testtype": "functional"}
    row = {"question_id": "q", "question_content": "?", "public_test_cases": [test], "metadata": {"func_name": "f"}}
    shaped = livecodebench(row)
    problem = problem_of(Task(id="t", question="?", tests=shaped["tests"]))
    assert problem is not None and problem.cases == (Case(arguments=(wanted,), expected=wanted),)


def test_private_tests_are_unpacked_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problem_module, "MOST_TEST_BYTES", 4 << 20)
    test = [{"input": "x" * (5 << 20), "output": "1", "testtype": "stdin"}]
    packed = zlib.compress(pickle.dumps(json.dumps(test)))
    assert len(packed) < 10_000
    row = {"public_test_cases": "[]", "private_test_cases": base64.b64encode(packed).decode()}
    with pytest.raises(ScoringError, match="unpack to more than 4 MB"):
        problem_from(row)
    monkeypatch.setattr(problem_module, "MOST_TEST_BYTES", 6 << 20)
    assert problem_from(row).cases[0].stdin == "x" * (5 << 20)
    row["private_test_cases"] = base64.b64encode(packed[:-20]).decode()
    with pytest.raises(ScoringError, match="cut off"):
        problem_from(row)


@pytest.mark.parametrize(
    "text",
    [
        "assert f(x) == 2",
        "assert abs(f(1) - 2) < 1e-6",
        "for i in range(3):\n    assert f(i) == i",
        "assert f(1) == 2\nassert g(1) == 2",
        "assert Solution(1).f(1) == 2",
        "result = f(1)\nother = f(2)\nassert result == other",
        "assert f(a=1) == 2",
        "assert f(1) is 2",
        "assert f(1) is not None",
        "assert f(1) == {2, 3}",
    ],
)
def test_other_assertions_stay_as_they_are(text: str) -> None:
    problem = problem_of(Task(id="t", question="q", tests=CodeTests(functional=text)))
    assert problem is not None and problem.assertions == text and not problem.cases


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"question": "q"},
        {"inputs": ["1"], "outputs": []},
        {"cases": [{"surprise": 1}]},
        {"public_test_cases": "nope"},
    ],
)
def test_what_has_no_tests_is_refused_with_the_reason(row: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(row))
    with pytest.raises(ScoringError, match=r"problem\.json"):
        read_problem(path)


@pytest.mark.skipif(not (SHARED / "livecodebench_v5.parquet").exists(), reason="the benchmark file is not here")
def test_livecodebench_rows_of_afm_all_become_cases() -> None:
    from coa.trajectory.formats.tasks import read_tasks

    problems = [problem_of(task) for task in read_tasks(SHARED / "livecodebench_v5.parquet")]
    assert len(problems) == 167 and all(problems)
    assert sum(problem.function is not None for problem in problems if problem) == 62
    assert all(problem.assertions is None for problem in problems if problem)
