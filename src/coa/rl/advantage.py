"""How much better an attempt was than its group."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

_SMALL: Final = 1e-6


def has_contrast(rewards: Sequence[float]) -> bool:
    """Whether a group teaches anything: equal rewards centre to zero."""
    return len(rewards) > 1 and max(rewards) - min(rewards) > _SMALL


def group_advantages(
    rewards: Sequence[float], *, scaled: bool = True, tokens: Sequence[int] | None = None
) -> list[float]:
    """Reward less the group's mean, divided by its standard deviation (that of a sample, n - 1) unless told not to.

    With `tokens`, what each attempt wrote, it is the mean over tokens: then their advantages sum to zero. Otherwise,
    where wrong attempts are the longer ones and tokens weigh the same, whatever all attempts have in common is made
    less likely, the format above all.
    """
    if not has_contrast(rewards):
        return [0.0] * len(rewards)
    mean = statistics.fmean(rewards, tokens)
    spread = statistics.stdev(rewards) + _SMALL if scaled else 1.0
    return [(reward - mean) / spread for reward in rewards]
