"""The same batch through verl's advantages and loss, and through ours."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage, get_policy_loss_fn

from coa.models.base import Sampling
from coa.models.tokenizer import load_tokenizer
from coa.rl.algorithms import policy_loss
from coa.rl.algorithms.base import TokenBatch
from coa.rl.config import RlConfig
from coa.rl.engines.verl.launch import compose
from coa.rl.engines.verl.loop import TokenServer, expressible, to_output
from coa.rl.engines.verl.settings import verl_settings
from coa.rl.groups import Group, RewardedAttempt, mean_advantages
from coa.rl.policy import open_policy
from coa.rl.reward import REWARD, Rewards, shaped_reward
from coa.rl.update import Trainer, token_weights
from coa.runtime import Setting, run_many
from coa.scoring import scorer_for
from coa.tools import Observation, Tool
from coa.trajectory import Sample, Task, Trajectory, load_profile, profile_of, to_sample
from coa.trajectory.formats.tasks import read_tasks
from support.newborn import Knowing, settings

GROUPS, ATTEMPTS = 3, 8


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> tuple[RlConfig, list[list[Trajectory]]]:
    folder = tmp_path_factory.mktemp("newborn")
    config = RlConfig.model_validate(settings(folder, seed=1))
    policy = open_policy(config, "cpu")
    rewards = Rewards(config.reward, scorer_for("exact"))

    async def attempts(task: Task) -> list[Trajectory]:
        profile = load_profile(config.profile)
        setting = Setting(
            policy.sampler, {"web_search": Knowing()}, profile, sampling=Sampling(1.0, 1.0, 0, 2, seed=7),
            limits=config.limits(profile), prompt=lambda task: task.prompt,
        )  # fmt: skip
        runs = [run async for run in run_many([task], setting, samples=ATTEMPTS)]
        return [await rewards.of(run, profile_of(run)) for run in sorted(runs, key=lambda run: run.sample)]

    async def all_attempts() -> list[list[Trajectory]]:
        tasks = list(read_tasks(str(config.tasks)))[:GROUPS]
        return [await attempts(task) for task in tasks]

    try:
        return config, asyncio.run(all_attempts())
    finally:
        asyncio.run(policy.sampler.close())


def outputs(config: RlConfig, groups: list[list[Trajectory]]) -> list[tuple[int, Sample, float, Any]]:
    """Group, sample, reward and what the agent loop returns, of each attempt."""
    tokenizer, found = load_tokenizer(config.model), []
    for number, group in enumerate(groups):
        for trajectory in group:
            sample = expressible(to_sample(trajectory, tokenizer, profile_of(trajectory), ends=True))
            if sample.logprobs is None:
                continue
            # Rewards of the newborn world are mostly equal; lengths make them differ.
            reward = shaped_reward(trajectory, sample.trained, config) + 0.1 * sample.trained
            server = TokenServer(None, tokenizer, {}, seeded=True)
            found.append((number, sample, reward, to_output(trajectory, sample, reward, server, tool_s=0.0)))
    return found


def padded(rows: list[list[float]]) -> torch.Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[0.0] * (longest - len(row))] for row in rows], dtype=torch.float32)


def test_advantages_and_loss_are_those_of_our_own_engine(
    case: tuple[RlConfig, list[list[Trajectory]]], tmp_path: Path
) -> None:
    config, groups = case
    made = outputs(config, groups)
    assert len(made) > GROUPS * ATTEMPTS // 2
    mask = padded([output.response_mask for *_, output in made])
    old = padded([output.response_logprobs for *_, output in made])
    rewards = torch.zeros_like(mask)
    for at, (*_, output) in enumerate(made):
        rewards[at, len(output.response_ids) - 1] = output.reward_score
    uids = np.array([str(number) for number, *_ in made], dtype=object)

    theirs, _ = compute_grpo_outcome_advantage(rewards, mask, uids)
    ours: list[float] = []
    for number in range(GROUPS):
        rows = [(sample, reward) for group, sample, reward, _ in made if group == number]
        task = groups[number][0].task
        attempts = tuple(RewardedAttempt(groups[number][0], reward, sample) for sample, reward in rows)
        ours += mean_advantages(Group(task, attempts, 1), config)
    assert len(set(ours)) > 3, "the advantages differ"
    assert torch.allclose(theirs, torch.tensor(ours).unsqueeze(1) * mask, atol=1e-5)

    # New weights: every log-probability moves, some beyond the clip range.
    torch.manual_seed(3)
    new = (old + 0.4 * torch.randn_like(old)) * mask
    verl = {**config.verl.model_dump(), "device": "cpu"}
    composed = compose(
        verl_settings(
            config.model_copy(update={"engine": "verl", "verl": type(config.verl).model_validate(verl)}),
            tmp_path,
            model=config.model,
            context_tokens=120,
            prompt_tokens=2,
            held_out=False,
        )
    )
    from verl.utils.config import omega_conf_to_dataclass

    actor = omega_conf_to_dataclass(composed.actor_rollout_ref.actor)
    actor.global_batch_info.update(dp_size=1, batch_num_tokens=int(mask.sum()), global_batch_size=len(made))
    loss, _ = get_policy_loss_fn("vanilla")(
        old_log_prob=old, log_prob=new, advantages=theirs, response_mask=mask, loss_agg_mode="token-mean", config=actor
    )
    written = mask.bool()
    row = torch.arange(len(made)).unsqueeze(1).expand_as(mask)[written]
    batch = TokenBatch(new[written], old[written], old[written], theirs[written], row)
    weights = torch.tensor(token_weights([sample.trained for _, sample, *_ in made], mode="token-mean"))[row]
    losses, clipped = policy_loss("ppo_clip")(batch, config)
    assert clipped.any() and not clipped.all()
    assert float(loss) == pytest.approx(float((losses * weights).sum()), abs=1e-5)


def test_the_response_is_what_the_model_read_and_wrote(case: tuple[RlConfig, list[list[Trajectory]]]) -> None:
    config, groups = case
    for _, sample, _, output in outputs(config, groups):
        ids = output.prompt_ids + output.response_ids
        assert ids == sample.ids[: len(ids)]
        assert output.response_mask[-1] == 1, "it ends with a token of the model's"
        assert sum(output.response_mask) == sample.trained
        assert all(value == 0.0 for value, written in zip(output.response_logprobs, output.response_mask, strict=True)
                   if not written)  # fmt: skip


def test_turn_ends_in_the_middle_of_a_run_are_trained_by_our_engine_only() -> None:
    """The difference between the two: verl trains each position on the token that is there."""
    sample = Sample(
        ids=[1, 5, 7, 8, 6], mask=[False, True, True, False, True], steps=[-1, 0, 1, 1, 2],
        logprobs=[0.0, -1.0, -2.0, 0.0, -3.0], labels={2: 9},
    )  # fmt: skip
    found = expressible(sample)
    assert sample.trained == 3 and found.trained == 2 and not found.labels
    assert found.mask == [False, True, False, False, True] and found.logprobs == [0.0, -1.0, 0.0, 0.0, -3.0]
    only_ends = replace(sample, mask=[False, False, True, False, False], logprobs=[0.0, 0.0, -2.0, 0.0, 0.0])
    assert expressible(only_ends).logprobs is None, "an attempt of which nothing is left is no row"


class Talkative(Knowing):
    async def call(self, arguments: Any, context: Any) -> Observation:
        return Observation(" ".join(["none"] * 60))


def test_overlong_shaping_counts_what_the_model_wrote_unlike_verls_own(tmp_path: Path) -> None:
    """An attempt with long tool output: no penalty by ours, a whole one by verl's manager, which counts that too."""
    from omegaconf import OmegaConf
    from tensordict import TensorDict
    from verl.experimental.reward_loop.reward_manager.dapo import DAPORewardManager
    from verl.protocol import DataProto

    limit, buffer = 12, 3
    changed = {"max_completion_length": limit, "overlong_buffer_ratio": buffer / limit, "overlong_penalty_factor": 1.0}
    config = RlConfig.model_validate(settings(tmp_path, seed=1) | changed)
    made = [
        (trajectory, output)
        for trajectory, sample, output in attempted(config, Talkative(), attempts=64)
        # It went on to write after what the tool said, and wrote little.
        if len(output.response_ids) > 60 and sample.trained <= limit - buffer
    ]
    assert made

    class AnyText:
        def decode(self, ids: Any, **_: Any) -> str:
            return "text"

    shaping = {"enable": True, "len": buffer, "penalty_factor": 1.0, "log": True}
    rules = OmegaConf.create({"reward": {"reward_kwargs": {"overlong_buffer_cfg": shaping, "max_resp_len": limit}}})
    for trajectory, output in made:
        assert output.reward_score == trajectory.scores[REWARD].value, "as if it were not overlong"
        ids = torch.tensor([output.response_ids])
        data = DataProto(
            batch=TensorDict({"responses": ids, "attention_mask": torch.ones_like(ids)}, batch_size=1),
            non_tensor_batch={
                "data_source": np.array(["coa"], dtype=object),
                "reward_model": np.array([{"ground_truth": ""}], dtype=object),
            },
        )

        async def judged(data: Any = data) -> Any:
            return await DAPORewardManager(rules, AnyText(), lambda **_: 1.0).run_single(data)

        assert float(asyncio.run(judged())["reward_extra_info"]["overlong_reward"]) <= -1.0


def attempted(config: RlConfig, tool: Tool, *, attempts: int) -> list[tuple[Trajectory, Sample, Any]]:
    """Attempts at the first task that are worth a row, each with its sample and what the agent loop returns for it."""
    policy, rewards = open_policy(config, "cpu"), Rewards(config.reward, scorer_for("exact"))
    profile = load_profile(config.profile)

    async def runs() -> list[Trajectory]:
        setting = Setting(
            policy.sampler, {"web_search": tool}, profile, sampling=Sampling(1.0, 1.0, 0, 2, seed=7),
            limits=config.limits(profile), prompt=lambda task: task.prompt,
        )  # fmt: skip
        (task, *_) = read_tasks(str(config.tasks))
        try:
            found = [run async for run in run_many([task], setting, samples=attempts)]
            return [await rewards.of(run, profile_of(run)) for run in found]
        finally:
            await policy.sampler.close()

    tokenizer, found = load_tokenizer(config.model), []
    for run in asyncio.run(runs()):
        sample = expressible(to_sample(run, tokenizer, profile_of(run), ends=True))
        if sample.logprobs is not None:
            reward = shaped_reward(run, sample.trained, config)
            server = TokenServer(None, tokenizer, {}, seeded=True)
            found.append((run, sample, to_output(run, sample, reward, server, tool_s=0.0)))
    return found


def test_a_trainer_step_of_ours_makes_the_same_loss(case: tuple[RlConfig, list[list[Trajectory]]]) -> None:
    """Before any update all ratios are 1, so the loss is minus the mean advantage over tokens, in both."""
    config, groups = case
    policy = open_policy(config, "cpu")
    try:
        made = outputs(config, groups)
        attempts = [
            Group(groups[number][0].task, tuple(
                RewardedAttempt(groups[number][0], reward, sample) for at, sample, reward, _ in made if at == number
            ), 1)
            for number in range(GROUPS)
        ]  # fmt: skip
        one = config.model_copy(update={"num_mini_batches": 1, "kl_coef": 0.0})
        stats = next(iter(Trainer(policy, one).learn(attempts, 1)))
        tokens = [
            value
            for group in attempts
            for attempt, value in zip(group.attempts, mean_advantages(group, config), strict=True)
            for _ in range(attempt.model_tokens)
        ]
        assert stats.loss == pytest.approx(-sum(tokens) / len(tokens), abs=1e-5)
    finally:
        asyncio.run(policy.sampler.close())
