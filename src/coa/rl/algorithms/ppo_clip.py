"""PPO's clipped policy loss, token by token, with DAPO's two clip ranges and a dual clip.

The ratio says how much more likely a token is under the policy in training than under the proximal policy. The loss
stops pulling once the ratio has left the clip range in the direction of the advantage. With truncated importance
sampling each token is also weighted by how much more likely the proximal policy makes it than the policy that sampled
it; that corrects for old samples, and clipping then limits only what the present updates change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from coa.rl.algorithms.base import TokenBatch
from coa.rl.config import RlConfig

MAX_LOG_RATIO: Final = 20.0
"""Log ratios are cut here, where exp is still a number that can be used."""


@dataclass(frozen=True)
class ClipRange:
    low: float = 0.2
    high: float = 0.28
    dual: float = 10.0
    """0 turns the dual clip off."""


def policy_loss(tokens: TokenBatch, config: RlConfig) -> tuple[Tensor, Tensor]:
    log_ratio = tokens.logprobs - tokens.proximal_logprobs
    log_staleness = tokens.proximal_logprobs - tokens.sampled_logprobs
    return clipped_and_weighted(log_ratio, log_staleness, tokens.advantages, config)


def clipped_and_weighted(
    log_ratio: Tensor, log_staleness: Tensor, advantages: Tensor, config: RlConfig
) -> tuple[Tensor, Tensor]:
    """The clipped loss, weighted by truncated importance sampling where that is on; all tensors are [tokens].

    `log_ratio` is of the policy to the proximal policy, `log_staleness` of that to the policy that sampled.
    """
    clip = ClipRange(config.clip_ratio_low, config.clip_ratio_high, config.clip_ratio_c)
    losses, clipped = clipped_loss(log_ratio, advantages, clip)
    if config.importance_sampling_cap:
        losses = losses * importance_weights(log_staleness, config.importance_sampling_cap)
    return losses, clipped


def clipped_loss(log_ratio: Tensor, advantages: Tensor, clip: ClipRange) -> tuple[Tensor, Tensor]:
    """The loss of each token, and whether clipping took its gradient away; all tensors are [tokens].

    The lower limit stops attempts with a negative advantage, the upper one those with a positive advantage. The dual
    clip stops negative ones whose ratio has become large, where the loss would otherwise grow without bound.
    """
    ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    unclipped = -advantages * ratio
    limited = -advantages * ratio.clamp(1 - clip.low, 1 + clip.high)
    loss = torch.maximum(unclipped, limited)
    clipped = limited > unclipped
    if clip.dual:
        most = -advantages * clip.dual
        beyond = (advantages < 0) & (loss > most)
        loss, clipped = torch.where(beyond, most, loss), clipped | beyond
    return loss, clipped.detach()


def importance_weights(log_ratio: Tensor, cap: float) -> Tensor:
    """How much more likely tokens have become since they were sampled, as a weight of at most `cap`; [tokens]."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().clamp(max=cap)
