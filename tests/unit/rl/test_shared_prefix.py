"""A prompt that attempts share goes through the model once, and nothing else changes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from coa.rl import shared_prefix, update
from coa.rl.config import RlConfig
from coa.rl.groups import Group, RewardedAttempt
from coa.rl.policy import Policy, open_policy
from coa.rl.shared_prefix import SharedPrefixes, prefix_batches
from coa.rl.update import Trainer
from coa.training.packed_model import logprobs_of
from coa.training.packing import TokenSample
from coa.trajectory import Sample, Task
from support.words import WORDS, trajectory, word_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(word_model(tmp_path_factory.mktemp("words") / "random"))


def config(folder: str, **extra: object) -> RlConfig:
    return RlConfig.model_validate(
        {"model": folder, "train_batch_size": 3, "gen_batch_size": 3, "num_generations": 2, **extra}
    )


def attempt(size: int, prompt: list[int], own: int, seed: int, reward: float) -> RewardedAttempt:
    """After the prompt in turn: what the model wrote, what the environment did."""
    rng = random.Random(seed)
    ids = prompt + [rng.randrange(size) for _ in range(own)]
    mask = [at >= len(prompt) and (at - len(prompt)) % 4 < 3 for at in range(len(ids))]
    sample = Sample(
        ids=ids,
        mask=mask,
        steps=[-1] * len(prompt) + [0] * own,
        logprobs=[-1.0 - rng.random() if written else 0.0 for written in mask],
    )
    return RewardedAttempt(trajectory("t", WORDS[3], WORDS[5]).scored("counted", reward), reward, sample)


def groups(policy: Policy) -> list[Group]:
    """Two that share a prompt of their own each, and one whose prompt is too short to be shared."""
    size = policy.tokenizer.vocabulary_size
    rng = random.Random(5)
    made = []
    for number, length in enumerate((40, 23, 6)):
        prompt = [rng.randrange(size) for _ in range(length)]
        members = [attempt(size, prompt, 9 + 7 * at, 10 * number + at, float(at % 2)) for at in range(4)]
        made.append(Group(Task(id=str(number), question="q"), tuple(members), 1))
    return made


def learnt(folder: str, **extra: object) -> Iterator[tuple[dict[str, torch.Tensor], Any, int]]:
    """Gradients, what was measured, and how many tokens went through the model: with prompts shared, then without."""
    setting = config(folder, **extra)
    policy = open_policy(setting, "cpu")
    with torch.no_grad():  # one half of a new adapter is zero, and with it the gradient of the other
        for name, weight in policy.trained.items():
            if "lora_B" in name:
                weight.normal_(std=0.1, generator=torch.Generator().manual_seed(1))
    decoder, seen = policy.inner.get_decoder(), list[int]()
    decoder.register_forward_pre_hook(lambda _, args, given: seen.append(given["input_ids"].shape[1]), with_kwargs=True)
    try:
        for worthwhile in (16, 10**6):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(shared_prefix, "WORTHWHILE", worthwhile)
                seen.clear()
                stats = next(iter(Trainer(policy, setting).learn(groups(policy), 1)))
                yield {n: w.grad.clone() for n, w in policy.trained.items() if w.grad is not None}, stats, sum(seen)
    finally:
        asyncio.run(policy.sampler.close())


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"freeze_embeddings": True, "freeze_layers": 1},
        {"lora": {"rank": 4}},
        {"gradient_checkpointing": True},
        {"micro_batch_tokens": 48},
        {"kl_coef": 0.1},
    ],
    ids=["full", "frozen below", "lora", "checkpointed", "short rows", "kl"],
)
def test_the_gradient_is_the_same_and_fewer_tokens_are_computed(folder: str, extra: dict[str, object]) -> None:
    (shared, stats, tokens), (whole, plainly, all_tokens) = learnt(folder, **extra)
    assert shared.keys() == whole.keys() and shared
    for name, gradient in whole.items():
        assert torch.allclose(shared[name], gradient, rtol=1e-3, atol=1e-6 + 1e-5 * float(gradient.abs().max())), name
    assert any(float(gradient.abs().max()) > 1e-4 for gradient in whole.values())
    assert stats.loss == pytest.approx(plainly.loss, abs=1e-5) and stats.tokens == plainly.tokens
    assert stats.kl == pytest.approx(plainly.kl, abs=1e-4)
    assert tokens < all_tokens


def test_how_far_a_step_moves_the_policy_is_measured_from_its_second_update_on(folder: str) -> None:
    def policy_kl(lr: float) -> list[float]:
        setting = config(folder, num_mini_batches=3, lr=lr)
        policy = open_policy(setting, "cpu")
        try:
            again = [
                RewardedAttempt(a.trajectory, a.reward, replace(a.sample, logprobs=sampled))
                for group in groups(policy)
                for a in group.attempts
                for sampled in [_now(policy, setting, a)]
            ]
            made = [Group(Task(id=str(at), question="q"), tuple(again[4 * at : 4 * at + 4]), 1) for at in range(3)]
            updates = Trainer(policy, setting).learn(made, 1)
            return [stats.policy_kl / max(stats.policy_kl_tokens, 1) for stats in updates]
        finally:
            asyncio.run(policy.sampler.close())

    (first, *small), (_, *large) = policy_kl(1e-5), policy_kl(1e-2)
    assert first == 0 and len(small) == 2
    assert 0 < max(small) < 0.001 < 0.01 < max(large)


def _now(policy: Policy, setting: RlConfig, one: RewardedAttempt) -> list[float]:
    """An attempt's logprobs as the policy has them."""
    trainer = Trainer(policy, setting)
    with torch.no_grad():
        found = iter(logprobs_of(policy.inner, trainer._fed([update.Item(one, (), True).sample])).tolist())
    return [next(found) if written else 0.0 for written in one.sample.mask]


def test_nothing_goes_back_through_frozen_layers_for_the_prompt(folder: str) -> None:
    policy = open_policy(config(folder, freeze_embeddings=True, freeze_layers=1), "cpu")
    try:
        examples = [update.Item(a, (), True).sample for a in groups(policy)[0].attempts]
        (batch,) = prefix_batches(examples, 1024)
        layers = SharedPrefixes(policy.inner, batch, torch.device("cpu"))._layers
        assert [key.requires_grad for key, _ in layers.values()] == [False] + [True] * (len(layers) - 1)
    finally:
        asyncio.run(policy.sampler.close())


def test_an_adapters_dropout_is_drawn_for_each_prompt(folder: str) -> None:
    (_, _, tokens), (_, _, all_tokens) = learnt(folder, lora={"rank": 4, "dropout": 0.5})
    assert tokens == all_tokens  # none is shared


def test_prefixes_end_before_the_token_that_says_what_comes_first_and_fit_into_a_row() -> None:
    def example(first: int, prompt: int, own: int = 5) -> TokenSample:
        ids = torch.cat([torch.full((prompt,), first), torch.arange(own)])
        return TokenSample(ids, torch.cat([torch.zeros(prompt), torch.ones(own)]))

    examples = [example(1, 30), example(2, 20), example(1, 30, 7), example(2, 20), example(3, 40), example(4, 2)]
    (batch,) = prefix_batches(examples, 1024)
    assert batch.members == [4, 5, 0, 2, 1, 3] and [len(ids) for ids in batch.prefixes] == [29, 19]
    assert batch.spans([0, 3, 5]) == [(0, 29), (29, 48), (0, 0)]
    assert batch.prefix_length(1) == 19 and batch.prefix_length(4) == 0
    small = list(prefix_batches(examples, 30))
    assert [p.members for p in small] == [[4, 5, 0, 2], [1, 3]]
    assert sorted(member for p in small for member in p.members) == list(range(6))
