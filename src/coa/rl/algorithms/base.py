"""What an algorithm is given and what it returns.

Advantages belong to tokens, not to attempts: an estimator returns one number for each token that the model wrote. The
shipped ones give all tokens of an attempt the same number; one that credits single turns, or that compares each token
with a teacher's, has the same signature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from coa.rl.config import RlConfig
from coa.trajectory import Sample, Trajectory

if TYPE_CHECKING:
    from torch import Tensor

SMALL: Final = 1e-6
"""Rewards closer than this are equal; it also keeps a standard deviation from being zero."""


class Rewarded(Protocol):
    """An attempt, as an estimator sees it."""

    @property
    def trajectory(self) -> Trajectory: ...

    @property
    def sample(self) -> Sample:
        """Its token ids, and which of them the model wrote."""

    @property
    def reward(self) -> float: ...


class AdvantageEstimator(Protocol):
    def __call__(self, group: Sequence[Rewarded], config: RlConfig) -> list[list[float]]:
        """For each attempt of the group, an advantage for each of the `sample.trained` tokens that the model wrote."""


@dataclass(frozen=True)
class TokenBatch:
    """Tokens that the model wrote in several attempts, one after another; what the environment wrote is not among them.

    The three log-probabilities are of the same tokens under three policies. Without truncated importance sampling the
    proximal policy is the one that sampled.
    """

    logprobs: Tensor  # [tokens], under the policy in training; the only one with a gradient
    proximal_logprobs: Tensor  # [tokens], under the policy from which clipping counts
    sampled_logprobs: Tensor  # [tokens], under the policy that sampled them
    advantages: Tensor  # [tokens]
    attempt: Tensor  # [tokens], the number of the attempt that a token belongs to, from 0 without gaps


class PolicyLoss(Protocol):
    def __call__(self, tokens: TokenBatch, config: RlConfig) -> tuple[Tensor, Tensor]:
        """The loss of each token, and whether clipping took its gradient away; both [tokens]."""


def has_contrast(rewards: Sequence[float]) -> bool:
    """Whether a group teaches anything: if all rewards are equal, all advantages are zero."""
    return len(rewards) > 1 and max(rewards) - min(rewards) > SMALL


def for_all_tokens(group: Sequence[Rewarded], advantages: Sequence[float]) -> list[list[float]]:
    """Each attempt's advantage, repeated for each of its tokens."""
    return [[value] * attempt.sample.trained for attempt, value in zip(group, advantages, strict=True)]
