"""RL for real, on a model and a world small enough for seconds."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from coa.errors import TrainingError
from coa.progress import PrintProgress
from coa.rl.config import RlConfig
from coa.rl.engines.local import train
from coa.tools import Observation
from coa.trajectory import Author, Stop, read
from support import newborn
from support.keys import KEY, PROFILE, Keyed, before_rl, key_tasks, settings
from support.words import WORDS, word_model


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("base")
    return settings(before_rl(folder), key_tasks(folder / "tasks.jsonl"))


def metrics(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_a_model_of_random_weights_learns_to_use_a_tool_from_reward_alone(seed: int, tmp_path: Path) -> None:
    """No fine-tuning before, no grammar: to call, then to answer, and to repeat what the tool said."""
    config = RlConfig.model_validate(newborn.settings(tmp_path, seed=seed))
    train(config, tmp_path / "run", tools={"web_search": newborn.Knowing()})
    rows = metrics(tmp_path / "run")
    success = [row["success"] for row in rows]
    assert len(success) == config.max_steps
    assert success[0] < 0.3 and sum(success[-3:]) / 3 > 0.9, success
    last = list(read(tmp_path / "run" / "groups" / f"step-{config.max_steps:04}.jsonl"))
    assert sum([step.agent for step in t.steps] == ["web_search", "observation", "answer"] for t in last) > 0.9 * len(
        last
    )
    gaps = [row["logprob_diff_max"] for row in rows if "logprob_diff_max" in row]
    assert max(gaps) < 1e-4


def test_what_to_ask_the_tool_is_learnt_after_fine_tuning(base: dict[str, object], tmp_path: Path) -> None:
    learning = {"max_steps": 18, "train_batch_size": 8, "gen_batch_size": 8, "num_mini_batches": 4, "seed": 1}
    train(RlConfig.model_validate({**base, **learning}), tmp_path / "run", tools={"web_search": Keyed()})
    success = [row["success"] for row in metrics(tmp_path / "run") if "success" in row]
    assert success[0] < 0.3 and sum(success[-3:]) / 3 > 0.9, success
    last = list(read(tmp_path / "run" / "groups" / "step-0018.jsonl"))
    asked = [step.text for t in last for step in t.steps if step.agent == "web_search"]
    assert asked.count(KEY) > 0.9 * len(asked)
    assert all(step.tokens is None for t in last for step in t.steps if step.author is Author.ENVIRONMENT)
    gaps = [row["logprob_diff_max"] for row in metrics(tmp_path / "run") if "logprob_diff_max" in row]
    assert max(gaps) < 1e-4


def test_tools_that_break_or_hang_do_not_stop_a_step(base: dict[str, object], tmp_path: Path) -> None:
    asked = 0

    class Unsound(Keyed):
        async def call(self, arguments, context):  # type: ignore[no-untyped-def]
            nonlocal asked
            asked += 1
            if asked % 5 == 0:
                raise RuntimeError("broken")
            if asked % 7 == 0:
                await asyncio.sleep(3600)
            return await super().call(arguments, context)

    config = RlConfig.model_validate({**base, "max_steps": 2})
    result = train(config, tmp_path / "run", tools={"web_search": Unsound(timeout_s=0.2)})
    assert result.finished
    rows = metrics(tmp_path / "run")
    assert [row["step"] for row in rows] == [1, 2] and all(row["failed"] == 0 for row in rows)
    told = [step.text for t in read(tmp_path / "run" / "groups" / "step-0001.jsonl") for step in t.steps]
    assert any("broken" in text for text in told) and any("0.2 s" in text for text in told), told


REWARD = """
def half(trajectory, score):
    return score if trajectory.sample % 2 else None

def never(task, answer):
    return None
"""


def test_what_has_no_reward_leaves_its_group(
    base: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_rl_reward.py").write_text(REWARD)
    monkeypatch.chdir(tmp_path)
    config = RlConfig.model_validate({**base, "max_steps": 1, "reward": {"function": "my_rl_reward:half"}})
    train(config, tmp_path / "run", tools={"web_search": Keyed()})
    (row,) = metrics(tmp_path / "run")
    assert row["unscored"] == 6 * 4 and row["groups_drawn"] == 6
    kept = list(read(tmp_path / "run" / "groups" / "step-0001.jsonl"))
    assert len(kept) == 24 and {t.sample % 2 for t in kept} == {1}

    said: list[str] = []
    config = RlConfig.model_validate({**base, "max_steps": 1, "reward": {"scorer": "my_rl_reward:never"}})
    train(config, tmp_path / "none", tools={"web_search": Keyed()}, progress=PrintProgress(said.append))
    (row,) = metrics(tmp_path / "none")
    assert row["unscored"] == 48 and row["groups_used"] == 0 and "reward" not in row
    assert any("none could be scored" in line for line in said)
    assert any("attempts left out: 48 unscored; one of task " in line for line in said), said


def test_attempts_that_broke_are_made_again(
    base: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that cannot be asked now and then, as one behind a bad connection."""
    from coa.errors import ModelError
    from coa.models.local import LocalModel

    generate, calls = LocalModel.generate, 0

    async def unsound(self, context, **rest):  # type: ignore[no-untyped-def]
        nonlocal calls
        calls += 1
        if calls % 9 == 0:
            raise ModelError("no connection")
        return await generate(self, context, **rest)

    monkeypatch.setattr(LocalModel, "generate", unsound)
    config = RlConfig.model_validate({**base, "max_steps": 1, "max_retries": 2})
    train(config, tmp_path / "run", tools={"web_search": Keyed()})
    (row,) = metrics(tmp_path / "run")
    assert row["refilled"] >= 4 and row["refilled"] + row["failed"] <= 24
    kept = list(read(tmp_path / "run" / "groups" / "step-0001.jsonl"))
    assert len(kept) == 48 - row["failed"] and len({t.key for t in kept}) == len(kept)


@pytest.mark.parametrize(
    "extra",
    [{"loss_agg_mode": "seq-mean-token-mean"}, {"policy_loss": "gspo", "loss_agg_mode": "seq-mean-token-mean"},
     {"kl_coef": 0.05}, {"kl_coef": 0.05, "use_kl_in_reward": True},
     {"lora": {"rank": 4}, "kl_coef": 0.05, "gradient_checkpointing": True},
     {"scale_rewards": "none", "dynamic_sampling": False}],
    ids=["grpo", "gspo", "kl", "kl in the reward", "lora with kl", "dr grpo"],
)  # fmt: skip
def test_each_piece_can_be_switched(base: dict[str, object], extra: dict[str, object], tmp_path: Path) -> None:
    config = RlConfig.model_validate(
        {**base, "max_steps": 2, "overlong_buffer_ratio": 0.0, "num_mini_batches": 2, **extra}
    )
    result = train(config, tmp_path / "run", tools={"web_search": Keyed()})
    rows = metrics(tmp_path / "run")
    assert result.finished and all(row["updates_skipped"] == 0 for row in rows)
    assert all(row["logprob_diff_mean"] < 1e-5 for row in rows if "logprob_diff_mean" in row)
    if "kl_coef" in extra and not extra.get("use_kl_in_reward"):
        assert rows[-1]["kl"] > 0


def test_overlong_attempts_lose_reward_by_what_the_model_wrote_alone(base: dict[str, object], tmp_path: Path) -> None:
    """The tool says a lot. The model writes six tokens; a limit of eight with half as buffer takes half a point."""

    class Talking(Keyed):
        async def call(self, arguments, context):  # type: ignore[no-untyped-def]
            found = await super().call(arguments, context)
            return Observation(" ".join([found.text] * 9))

    short = {"max_steps": 1, "max_completion_length": 8, "overlong_buffer_ratio": 0.5, "max_model_len": 200}
    train(RlConfig.model_validate({**base, **short}), tmp_path / "run", tools={"web_search": Talking()})
    kept = list(read(tmp_path / "run" / "groups" / "step-0001.jsonl"))
    assert kept
    for trajectory in kept:
        written = sum(len(step.tokens.ids) for step in trajectory.steps if step.tokens) + len(trajectory.ends)
        formed = trajectory.scores["reward"].reason != "not well-formed"
        expected = (trajectory.scores["success"].value or 0.0) * formed - min(max((written - 4) / 4, 0), 1)
        assert trajectory.scores["reward"].value == pytest.approx(expected)
        assert trajectory.meta["rl"]["reward"] == trajectory.scores["reward"].value  # type: ignore[index, call-overload]


def test_why_attempts_broke_is_said_and_ends_a_run_in_which_all_do(tmp_path: Path) -> None:
    tasks = key_tasks(tmp_path / "tasks.jsonl")
    (tmp_path / "asking.toml").write_text(PROFILE)
    narrow = {"kv_cache_gb": 1e-6, "max_steps": 2, "guards": {"max_idle_steps": 2}}  # no context fits
    config = RlConfig.model_validate({**settings(word_model(tmp_path / "random"), tasks), **narrow})
    said: list[str] = []
    with pytest.raises(
        TrainingError, match=r"for 2 consecutive steps; attempts left out: 48 failed; one of .* do not fit into"
    ):
        train(config, tmp_path / "run", tools={"web_search": Keyed()}, progress=PrintProgress(said.append))
    assert any("do not fit into" in line for line in said)
    assert (
        "an attempt may have 160 tokens, but kv_cache_gb=1e-06 has room for" in said[1]
        and "--set kv_cache_gb=" in said[1]
    )


def test_equal_rewards_are_said_also_where_such_groups_are_learnt_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_equal_reward.py").write_text("def zero(trajectory, score):\n    return 0.0\n")
    monkeypatch.chdir(tmp_path)
    tasks = key_tasks(tmp_path / "tasks.jsonl")
    (tmp_path / "asking.toml").write_text(PROFILE)
    grpo = {"dynamic_sampling": False, "overlong_buffer_ratio": 0.0, "max_steps": 3, "guards": {"max_idle_steps": 2}}
    random = settings(word_model(tmp_path / "random"), tasks)
    config = RlConfig.model_validate({**random, **grpo, "reward": {"function": "my_equal_reward:zero"}})
    said: list[str] = []
    with pytest.raises(TrainingError, match=r"do rewards differ .* for 2 consecutive steps"):
        train(config, tmp_path / "run", tools={"web_search": Keyed()}, progress=PrintProgress(said.append))
    assert any(line.startswith("step 1: nothing to learn: in none of 6 groups") for line in said)


def test_held_out_tasks_are_tried_with_the_tools_and_limits_of_their_own_profile(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "short.toml").write_text('extends = "mhqa"\nname = "short"\n[limits]\nsteps = 1\n')
    prompt = [{"role": "user", "content": WORDS[4]}]
    held_out = {"id": "h", "question": WORDS[4], "answer": WORDS[5], "prompt": prompt}
    (tmp_path / "held_out.jsonl").write_text(json.dumps({**held_out, "profile": str(tmp_path / "short.toml")}))
    tasks = key_tasks(tmp_path / "tasks.jsonl")
    (tmp_path / "asking.toml").write_text(PROFILE)
    random = settings(word_model(tmp_path / "random"), tasks)
    config = RlConfig.model_validate({**random, "max_steps": 1, "eval_tasks": str(tmp_path / "held_out.jsonl")})
    train(config, tmp_path / "run", tools={"web_search": Keyed()})
    assert "the tool wiki_search is not available" in caplog.text
    (looked,) = read(tmp_path / "run" / "agent" / "step-0" / "trajectories.jsonl")
    assert looked.stop is Stop.STEPS


def _silent(_: str) -> None:
    pass
