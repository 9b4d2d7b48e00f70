"""GSPO's policy loss: the clipped loss of PPO with one probability ratio for a whole attempt.

The ratio of an attempt is the geometric mean of its tokens' ratios, so it changes far less than theirs do; clip ranges
are accordingly narrow, such as 3e-4. `loss_agg_mode=seq-mean-token-mean` goes with it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from coa.rl.algorithms.base import TokenBatch
from coa.rl.algorithms.ppo_clip import clipped_and_weighted
from coa.rl.config import RlConfig


def policy_loss(tokens: TokenBatch, config: RlConfig) -> tuple[Tensor, Tensor]:
    log_ratio = mean_over_attempt(tokens.logprobs - tokens.proximal_logprobs, tokens.attempt)
    staleness = mean_over_attempt(tokens.proximal_logprobs - tokens.sampled_logprobs, tokens.attempt)
    return clipped_and_weighted(log_ratio, staleness, tokens.advantages, config)


def mean_over_attempt(values: Tensor, attempt: Tensor) -> Tensor:
    """Each token gets the mean of its attempt's values; all tensors are [tokens]."""
    count = int(attempt.max()) + 1 if len(attempt) else 0
    sums = torch.zeros(count, dtype=values.dtype, device=values.device).index_add(0, attempt, values)  # [attempts]
    return (sums / torch.bincount(attempt, minlength=count).clamp(min=1))[attempt]
