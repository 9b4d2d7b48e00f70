"""How the losses of single tokens become the loss of an update, and the distance between two policies.

A policy loss (`rl/algorithms/`) is one number for each token that the model wrote. An update's attempts are spread over
several rows that go through the model one after another, so the mean over the update is taken by weights: each token's
loss is multiplied by its share of the mean, and the sums of all rows add up to it. Tokens that the environment wrote
have no loss; they never get here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from coa.rl.algorithms.ppo_clip import MAX_LOG_RATIO


def token_weights(lengths: Sequence[int], *, mode: Literal["token-mean", "seq-mean-token-mean"]) -> list[float]:
    """The weight of a token of each attempt; `lengths` are the attempts' numbers of tokens.

    The weighted sum over all tokens is the mean over tokens, or the mean over attempts of the mean over their tokens.
    """
    if mode == "token-mean":
        return [1.0 / sum(lengths)] * len(lengths)
    return [1.0 / (length * len(lengths)) for length in lengths]


def kl_to(reference: Tensor, logprobs: Tensor) -> Tensor:
    """An estimate of the KL divergence to the reference at each token which is never negative (k3); [tokens]."""
    difference = (reference - logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return difference.exp() - difference - 1
