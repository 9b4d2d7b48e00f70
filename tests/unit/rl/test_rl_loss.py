"""Advantage, loss and shaping by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import get_args

import pytest
import torch

from coa.rl.algorithms import advantage_estimator, policy_loss
from coa.rl.algorithms.base import TokenBatch, has_contrast
from coa.rl.algorithms.grpo import group_advantages
from coa.rl.algorithms.gspo import mean_over_attempt
from coa.rl.algorithms.ppo_clip import ClipRange, clipped_loss, importance_weights
from coa.rl.config import RlConfig
from coa.rl.reward import overlong_penalty
from coa.rl.update import kl_to, token_weights
from coa.trajectory import Sample, Task, Trajectory


def loss_at(ratio: float, advantage: float, clip: ClipRange | None = None) -> tuple[float, float]:
    """Loss and its slope over the log ratio, which is ratio * slope over the ratio."""
    log_ratio = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    loss, _ = clipped_loss(log_ratio, torch.tensor([advantage], dtype=torch.float64), clip or ClipRange())
    loss.sum().backward()
    assert log_ratio.grad is not None
    return loss.item(), log_ratio.grad.item()


def test_advantages_of_a_group_of_four() -> None:
    # Rewards 1, 0, 0, 1: mean 0.5, squared deviations 4 * 0.25 = 1, over n - 1 = 3, root 0.57735; 0.5 / 0.57735.
    assert group_advantages([1, 0, 0, 1]) == pytest.approx([0.866025, -0.866025, -0.866025, 0.866025], abs=1e-5)
    # Rewards 1, 0, 0, 0: mean 0.25, deviations 0.75 and -0.25, variance (0.5625 + 3 * 0.0625) / 3 = 0.25.
    assert group_advantages([1, 0, 0, 0]) == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)
    assert group_advantages([1, 0, 0, 0], scaled=False) == [0.75, -0.25, -0.25, -0.25]


def test_compared_with_the_mean_over_tokens_what_attempts_have_in_common_stays() -> None:
    # A right attempt of 100 tokens, two wrong ones of 200 and 100: mean over tokens 100 / 400 = 0.25.
    tokens = [100, 200, 100]
    found = group_advantages([1, 0, 0], scaled=False, weights=tokens)
    assert found == [0.75, -0.25, -0.25]
    assert sum(a * n for a, n in zip(found, tokens, strict=True)) == 0
    plain = group_advantages([1, 0, 0], scaled=False)
    assert sum(a * n for a, n in zip(plain, tokens, strict=True)) < -30  # 100 * 2/3 - 300 * 1/3
    # Divided by the deviation of a sample: squares of 2/3, 1/3, 1/3 around the plain mean, 2/3, over 2, root 0.57735.
    assert group_advantages([1, 0, 0], weights=tokens) == pytest.approx([1.299, -0.433, -0.433], abs=1e-3)


def test_equal_rewards_teach_nothing() -> None:
    assert group_advantages([0.3, 0.1 + 0.2, 0.3]) == [0.0, 0.0, 0.0]
    assert not has_contrast([1.0]) and not has_contrast([]) and has_contrast([0.0, 0.1])


def test_a_good_attempt_counts_up_to_the_higher_clip() -> None:
    assert loss_at(1.2, 2.0) == pytest.approx((-2.4, -2.4))  # inside 1.28: -A * ratio, slope the same
    assert loss_at(1.5, 2.0) == pytest.approx((-2.56, 0.0))  # clipped at 1.28
    assert loss_at(0.5, 2.0) == pytest.approx((-1.0, -1.0))  # below, a good attempt is free


def test_a_bad_attempt_counts_down_to_the_lower_clip_and_up_to_the_dual_one() -> None:
    assert loss_at(0.9, -2.0) == pytest.approx((1.8, 1.8))
    assert loss_at(0.5, -2.0) == pytest.approx((1.6, 0.0))  # clipped at 0.8
    assert loss_at(9.0, -2.0) == pytest.approx((18.0, 18.0))  # above 1.28, a bad attempt is free ...
    assert loss_at(12.0, -2.0) == pytest.approx((20.0, 0.0))  # ... until the dual clip, 10
    assert loss_at(12.0, -2.0, ClipRange(dual=0)) == pytest.approx((24.0, 24.0))


def test_clipped_tokens_are_counted() -> None:
    ratios = torch.tensor([1.5, 0.5, 1.5, 0.5, 12.0]).log()
    _, clipped = clipped_loss(ratios, torch.tensor([1.0, 1.0, -1.0, -1.0, -1.0]), ClipRange())
    assert clipped.tolist() == [True, False, False, True, True]


def test_token_mean_and_sequence_mean_weigh_differently() -> None:
    # Losses 1, 1, 1 of one attempt and 5 of another: over tokens 8 / 4 = 2; over attempts (1 + 5) / 2 = 3.
    losses = torch.tensor([1.0, 1.0, 1.0, 5.0])
    whose = torch.tensor([0, 0, 0, 1])
    for mode, expected in (("token-mean", 2.0), ("seq-mean-token-mean", 3.0)):
        weights = torch.tensor(token_weights([3, 1], mode=mode))[whose]  # type: ignore[arg-type]
        assert (losses * weights).sum().item() == pytest.approx(expected)


def test_a_sequence_ratio_is_the_geometric_mean_of_its_tokens() -> None:
    new, old = torch.tensor([0.1, 0.3, -0.5]), torch.zeros(3)
    found = mean_over_attempt(new - old, torch.tensor([0, 0, 1]))
    assert found.tolist() == pytest.approx([0.2, 0.2, -0.5])


def test_distance_to_the_reference_is_zero_at_it_and_positive_elsewhere() -> None:
    # exp(0.5) - 0.5 - 1 = 0.148721; exp(-0.5) + 0.5 - 1 = 0.106531.
    found = kl_to(torch.tensor([-1.0, -0.5, -1.5]), torch.tensor([-1.0, -1.0, -1.0]))
    assert found.tolist() == pytest.approx([0.0, 0.148721, 0.106531], abs=1e-5)


@pytest.mark.parametrize(
    ("tokens", "expected"), [(0, 0.0), (700, 0.0), (701, -0.01), (750, -0.5), (800, -1.0), (5000, -1.0)]
)
def test_the_overlong_ramp(tokens: int, expected: float) -> None:
    # A limit of 800 with an eighth as buffer: free up to 700, then a hundredth a token.
    assert overlong_penalty(tokens, limit=800, buffer=0.125, most=1.0) == pytest.approx(expected)


def test_without_a_buffer_nothing_is_taken_off() -> None:
    assert overlong_penalty(10_000, limit=800, buffer=0.0, most=1.0) == 0.0


def test_importance_is_the_ratio_up_to_a_cap() -> None:
    found = importance_weights(torch.tensor([0.5, 1.0, 3.0, 1e30]).log(), 2.0)
    assert found.tolist() == pytest.approx([0.5, 1.0, 2.0, 2.0])


# ---- every algorithm that the settings name, and advantages per token


def choices(setting: str) -> tuple[str, ...]:
    return get_args(RlConfig.model_fields[setting].annotation)


@dataclass(frozen=True)
class Fake:
    """An attempt of which an estimator sees the reward and how many tokens the model wrote."""

    reward: float
    tokens: int

    @property
    def trajectory(self) -> Trajectory:
        return Trajectory(task=Task(id="t", question="q"), profile="nano")

    @property
    def sample(self) -> Sample:
        return Sample([0, *range(self.tokens)], [False] + [True] * self.tokens, [-1] + [0] * self.tokens, None)


def test_every_estimator_gives_an_advantage_for_each_token_that_the_model_wrote() -> None:
    group = [Fake(1.0, 100), Fake(0.0, 200), Fake(0.0, 100)]
    for name in choices("advantage_estimator"):
        found = advantage_estimator(name)(group, RlConfig.model_validate({"advantage_estimator": name}))
        assert [len(tokens) for tokens in found] == [100, 200, 100]
    plain = advantage_estimator("grpo")(group, RlConfig(scale_rewards="none"))
    assert [set(tokens) for tokens in plain] == [{1 - 1 / 3}, {-1 / 3}, {-1 / 3}]
    even = advantage_estimator("token_baseline")(group, RlConfig(scale_rewards="none"))
    assert [set(tokens) for tokens in even] == [{0.75}, {-0.25}, {-0.25}]


@pytest.mark.parametrize("name", choices("policy_loss"))
def test_the_advantage_of_one_token_changes_the_loss_of_that_token_alone(name: str) -> None:
    logprobs, proximal = torch.tensor([-1.0, -0.9, -2.0]), torch.tensor([-1.1, -1.0, -2.0])
    attempt, config = torch.tensor([0, 0, 1]), RlConfig(importance_sampling_cap=2.0)

    def losses(*advantages: float) -> list[float]:
        batch = TokenBatch(logprobs, proximal, proximal - 0.05, torch.tensor(advantages), attempt)
        found, _ = policy_loss(name)(batch, config)
        return found.tolist()

    same, other = losses(1.0, 1.0, 1.0), losses(1.0, 0.5, 1.0)
    assert other[0] == same[0] and other[2] == same[2] and other[1] == pytest.approx(same[1] / 2)
