"""What `coa eval --dry-run` says, without opening a model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from coa.choices import Select
from coa.errors import CoaError
from coa.evaluate import EvalConfig, plan
from coa.runtime import RunConfig


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    rows = [{"id": f"t{n}", "question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(3)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "sums.jsonl"


def test_attempts_ceilings_and_calls_of_the_judge_are_counted(tasks: Path) -> None:
    run = RunConfig(model="http://127.0.0.1:9", profile="nano", limits={"model_tokens": 50, "tool_calls": 2})
    found = plan(EvalConfig(benchmarks=(str(tasks),), run=run, samples=4, judge="http://127.0.0.1:9"))
    (benchmark,) = found.benchmarks
    assert (benchmark.tasks, benchmark.attempts, found.attempts) == (3, 12, 12)
    assert (benchmark.max_tokens_per_attempt, benchmark.max_tokens, benchmark.max_tool_calls) == (50, 600, 24)
    assert benchmark.max_judge_calls == 12
    assert "[user]\nWhat is 0 + 1?" in benchmark.first_prompt and benchmark.first_prompt_tokens is None
    assert found.memory is None, "the server's memory is not ours"
    without = plan(EvalConfig(benchmarks=(str(tasks),), run=run, samples=4)).benchmarks[0]
    assert without.max_judge_calls == 0
    chosen = EvalConfig(benchmarks=(str(tasks),), run=run, best_of=4, select=Select.JUDGE, judge="http://127.0.0.1:9")
    assert plan(chosen).benchmarks[0].max_judge_calls == 12 + 3


def test_a_dry_run_and_a_wrong_scorer_open_no_model(tasks: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from coa.errors import CoaError; from coa.evaluate import EvalConfig, evaluate, plan\n"
        "from coa.runtime import RunConfig\n"
        "run = RunConfig(model='nano', profile='nano')\n"
        "print(plan(EvalConfig(benchmarks=(sys.argv[1],), run=run)).memory.total > 0)\n"
        "try: evaluate(EvalConfig(benchmarks=(sys.argv[1],), run=run, scorer='exakt'), 'out')\n"
        "except CoaError as error: print(error.message)\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tasks)], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.splitlines() == ["True", "there is no scorer 'exakt'", "False"], done.stderr


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CoaError, match="nowhere"):
        plan(EvalConfig(benchmarks=(str(tmp_path / "nowhere.jsonl"),)))
