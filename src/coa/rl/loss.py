"""The policy's loss: one number a token, to be weighed and summed. Flat over tokens; `sequence` says whose they are.

All functions take the model's own tokens only. What the environment wrote is not there at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

_FARTHEST: Final = 20.0
"""Log ratios beyond this are cut: exp of more is no longer a number worth having."""


@dataclass(frozen=True)
class Clip:
    low: float = 0.2
    high: float = 0.28
    dual: float = 10.0
    """0: none."""


def log_ratios(logprobs: Tensor, old: Tensor, sequence: Tensor, *, level: Literal["token", "sequence"]) -> Tensor:
    """log of new over old probability: each token's own, or its sequence's geometric mean a token (GSPO)."""
    ratios = logprobs - old
    if level == "token":
        return ratios
    count = int(sequence.max()) + 1 if len(sequence) else 0
    sums = torch.zeros(count, dtype=ratios.dtype, device=ratios.device).index_add(0, sequence, ratios)
    return (sums / torch.bincount(sequence, minlength=count).clamp(min=1))[sequence]


def clipped_loss(log_ratio: Tensor, advantages: Tensor, clip: Clip) -> tuple[Tensor, Tensor]:
    """Loss of each token, and whether a limit held it (so that it has no gradient).

    The lower limit holds bad attempts, the higher one good ones. The dual limit holds bad attempts whose ratio has
    become large, where the loss would otherwise grow without end.
    """
    ratio = log_ratio.clamp(-_FARTHEST, _FARTHEST).exp()
    free = -advantages * ratio
    limited = -advantages * ratio.clamp(1 - clip.low, 1 + clip.high)
    loss = torch.maximum(free, limited)
    held = limited > free
    if clip.dual:
        most = -advantages * clip.dual
        beyond = (advantages < 0) & (loss > most)
        loss, held = torch.where(beyond, most, loss), held | beyond
    return loss, held.detach()


def importance(log_ratio: Tensor, cap: float) -> Tensor:
    """How much likelier tokens have become since they were sampled, as a weight of at most `cap`."""
    return log_ratio.clamp(-_FARTHEST, _FARTHEST).exp().clamp(max=cap)


def token_weights(lengths: Sequence[int], *, mean: Literal["token", "sequence"]) -> list[float]:
    """What a token of each sequence weighs in an update, so that the weighted sum is the mean over tokens, or the mean
    over sequences of the mean over their tokens."""
    if mean == "token":
        return [1.0 / sum(lengths)] * len(lengths)
    return [1.0 / (length * len(lengths)) for length in lengths]


def kl_to(reference: Tensor, logprobs: Tensor) -> Tensor:
    """An estimate of the distance to the reference at each token that is never negative (k3)."""
    difference = (reference - logprobs).clamp(-_FARTHEST, _FARTHEST)
    return difference.exp() - difference - 1
