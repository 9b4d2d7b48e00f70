"""GRPO's advantages with another baseline: the mean reward over the group's tokens instead of over its attempts.

Where all tokens count the same in the loss (`loss_agg_mode=token-mean`) and wrong attempts are longer than correct
ones, GRPO's advantages have a negative sum over the tokens of a group. What all attempts have in common, the format
above all, is then made less likely in every update. With this baseline the advantages of a group's tokens sum to zero.
"""

from __future__ import annotations

from collections.abc import Sequence

from coa.rl.algorithms.base import Rewarded, for_all_tokens
from coa.rl.algorithms.grpo import group_advantages
from coa.rl.config import RlConfig


def advantages(group: Sequence[Rewarded], config: RlConfig) -> list[list[float]]:
    rewards, lengths = [attempt.reward for attempt in group], [attempt.sample.trained for attempt in group]
    return for_all_tokens(group, group_advantages(rewards, scaled=config.scale_rewards == "group", weights=lengths))
