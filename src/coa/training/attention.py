"""Attention over packed rows: several samples lie in one row without padding, and each attends to itself alone.

The usual way is one attention call for the row with a block-diagonal mask, which costs the square of the row's length.
Here the row is split at the samples' borders and attention is computed sample by sample, so that each costs what it
would cost alone and gives the same numbers to the last bit. transformers calls `attend` in every layer under the name
`coa_segments`; the lengths of the samples come with the call.

A long row may be divided among several processes (`sequence_parallel.py`), each of which has a piece of the tokens. The
heads are then divided instead while attention is computed.

In RL, attempts at one task begin with the same prompt (`rl/shared_prefix.py`). The prompt's keys and values are then
computed in another row, and a sample sees them before its own through a `PrefixCache`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from transformers import AttentionInterface

from coa.errors import ModelError
from coa.training.sequence_parallel import SequenceGroup

NAME: Final = "coa_segments"


@dataclass(frozen=True)
class PrefixCache:
    """Keys and values of the samples' prefixes, which were computed in another row."""

    layers: Mapping[int, tuple[Tensor, Tensor]]
    """Keys and values of that row by layer, each [1, key heads, tokens of that row, width]."""
    spans: Sequence[tuple[int, int]]
    """Where each sample's prefix is in that row: first token and end."""

    def prepend(self, layer: int, sample: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values that a sample sees: its prefix's and its own, [1, key heads, prefix + tokens, width]."""
        first, last = self.spans[sample]
        keys, values = self.layers[layer]
        return torch.cat([keys[:, :, first:last], key], 2), torch.cat([values[:, :, first:last], value], 2)


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    coa_segments: Sequence[int] | None = None,
    coa_prefix: PrefixCache | None = None,
    coa_collect: dict[int, tuple[Tensor, Tensor]] | None = None,
    coa_sequence: SequenceGroup | None = None,
    sliding_window: int | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """The attention of one layer over a row; the result is [1, tokens, heads, width].

    `query` is [1, heads, tokens, width], `key` and `value` are [1, key heads, tokens, width]. `coa_segments` are the
    lengths of the samples in the row, in order. `coa_collect` is filled with the row's keys and values, for rows whose
    samples go on from it with `coa_prefix`. With `coa_sequence`, the tokens are a piece of the row that the segments
    are of.
    """
    unknown = [name for name in ("softcap", "s_aux", "position_bias") if rest.get(name) is not None]
    if unknown:
        raise ModelError(
            f"this model's attention uses {unknown[0]}, which attention over packed rows does not support",
            hint="--set attn_implementation=eager --set packing=false",
        )
    if coa_collect is not None:
        coa_collect[module.layer_idx] = key, value
    if coa_sequence is not None:
        query, key, value = (coa_sequence.to_heads(tensor) for tensor in (query, key, value))
    segments = list(coa_segments) if coa_segments is not None else [query.shape[2]]
    pieces = []
    split = zip(*(torch.split(tensor, segments, 2) for tensor in (query, key, value)), strict=True)
    for sample, (q, k, v) in enumerate(split):
        if coa_prefix is not None:
            k, v = coa_prefix.prepend(module.layer_idx, sample, k, v)
        mask = _mask(q.shape[2], k.shape[2], sliding_window, q.device)
        pieces.append(
            torch.nn.functional.scaled_dot_product_attention(
                q, k, v, mask, dropout, is_causal=mask is None, scale=scaling, enable_gqa=q.shape[1] != k.shape[1]
            )
        )
    mixed = pieces[0] if len(pieces) == 1 else torch.cat(pieces, 2)
    if coa_sequence is not None:
        mixed = coa_sequence.to_tokens(mixed)
    return mixed.transpose(1, 2).contiguous(), None


def _mask(new: int, length: int, window: int | None, device: torch.device) -> Tensor | None:
    """Which of `length` tokens each of the last `new` may see, [new, length]; None if plain causal attention says
    it."""
    if new == length and (window is None or length <= window):
        return None
    distance = torch.arange(length - new, length, device=device)[:, None] - torch.arange(length, device=device)
    return distance >= 0 if window is None else (distance >= 0) & (distance < window)


AttentionInterface.register(NAME, attend)
