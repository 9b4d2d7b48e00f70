"""GRPO's advantages: how much better an attempt's reward is than the mean of its group.

All tokens of an attempt get the same advantage. DAPO uses these advantages too, and so does Dr. GRPO with
`scale_rewards=none`.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from coa.rl.algorithms.base import SMALL, Rewarded, for_all_tokens, has_contrast
from coa.rl.config import RlConfig


def advantages(group: Sequence[Rewarded], config: RlConfig) -> list[list[float]]:
    rewards = [attempt.reward for attempt in group]
    return for_all_tokens(group, group_advantages(rewards, scaled=config.scale_rewards == "group"))


def group_advantages(
    rewards: Sequence[float], *, scaled: bool = True, weights: Sequence[int] | None = None
) -> list[float]:
    """Reward minus the group's mean (weighted, if weights are given), divided by its standard deviation if `scaled`.

    The standard deviation is that of a sample (n - 1), as in TRL and verl.
    """
    if not has_contrast(rewards):
        return [0.0] * len(rewards)
    mean = statistics.fmean(rewards, weights)
    deviation = statistics.stdev(rewards) + SMALL if scaled else 1.0
    return [(reward - mean) / deviation for reward in rewards]
