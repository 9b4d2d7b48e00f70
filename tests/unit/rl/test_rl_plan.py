"""What `coa rl --dry-run` says, and what is reported before torch is loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from coa.errors import CoaError
from coa.rl import RlConfig, plan
from coa.rl.config import Reward

CHECKS = """
import sys
from coa.errors import CoaError
from coa.rl import RlConfig, rl
for given in sys.stdin.read().splitlines():
    import json
    try:
        rl(RlConfig.model_validate(json.loads(given)), "out")
    except CoaError as error:
        print(error.message)
print("torch" in sys.modules, "transformers" in sys.modules)
"""


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    rows = [{"id": f"t{n}", "question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(6)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "tasks.jsonl"


def test_a_wrong_reward_and_missing_data_are_reported_before_torch_is_loaded(tasks: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def needs_three(a, b, c): return 0\n")
    given = [
        {"tasks": str(tasks), "reward": {"function": "nowhere:reward"}},
        {"tasks": str(tasks), "reward": {"function": f"{tmp_path}/mine.py:needs_three"}},
        {"tasks": str(tasks), "reward": {"scorer": "exakt"}},
        {"tasks": str(tasks), "reward": {"scorer": "judge"}},
        {"tasks": "nowhere.jsonl"},
        {"tasks": str(tasks), "world": "nowhere"},
        {"tasks": str(tasks), "tools": ["unheard_of"]},
        {"tasks": str(tasks), "model": "./nothing"},
        {"tasks": str(tasks), "freeze_layers": 30},
    ]
    lines = "".join(json.dumps(row) + "\n" for row in given)
    done = subprocess.run([sys.executable, "-c", CHECKS], input=lines, capture_output=True, text=True, cwd=tmp_path)
    *said, loaded = done.stdout.splitlines()
    expected = [
        "nowhere", "cannot be called", "no scorer 'exakt'", "need a model that judges", "nowhere.jsonl", "no world",
        "no tool named 'unheard_of'", "no folder ./nothing", "30 layers cannot be frozen",
    ]  # fmt: skip
    assert len(said) == len(expected) and all(part in line for part, line in zip(expected, said, strict=True)), said
    assert loaded == "False False", "torch and transformers"
    assert not (tmp_path / "out").exists()


def test_the_plan_counts_attempts_tokens_and_updates(tasks: Path) -> None:
    found = plan(
        RlConfig(
            tasks=str(tasks), max_steps=5, train_batch_size=4, num_generations=8, max_num_gen_batches=3,
            max_completion_length=100, max_model_len=1000, num_mini_batches=2, ppo_epochs=3,
        )
    )  # fmt: skip
    assert (found.tasks, found.steps, found.groups_per_step, found.attempts_per_group) == (6, 5, 4, 8)
    # Eight tasks would be drawn at a time, but there are only six.
    assert (found.attempts_per_step, found.max_attempts_per_step) == (48, 144)
    assert (found.max_tokens_per_attempt, found.max_tokens_per_step) == (100, 14_400)
    assert found.updates == 5 * 2 * 3 and found.evaluations == 0
    assert "What is 0 + 1?" in found.first_prompt and found.first_prompt_tokens > 5
    assert found.parameters == 134_515_008
    assert found.memory is not None and found.memory.parts["packed copy of the weights"] == 4 * 30 * 3_540_096 + 4 * 576
    assert any("at most 144" in line for line in found.lines())


def test_held_out_tasks_are_attempted_at_the_start_in_between_and_at_the_end(tasks: Path, tmp_path: Path) -> None:
    (tmp_path / "eval.jsonl").write_text('{"id": "e", "question": "What is 9 + 9?", "answer": "18"}\n')
    config = RlConfig(tasks=str(tasks), eval_tasks=str(tmp_path / "eval.jsonl"), max_steps=25, eval_steps=10)
    assert plan(config).evaluations == 4  # before the first step, after 10, 20 and 25


def test_a_reward_that_cannot_be_imported_is_refused_by_the_plan_too(tasks: Path) -> None:
    with pytest.raises(CoaError, match="cannot be imported"):
        plan(RlConfig(tasks=str(tasks), reward=Reward(function="nowhere:reward")))
