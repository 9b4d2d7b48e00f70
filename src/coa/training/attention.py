"""Attention of samples that share a row: each sees itself and nothing else, and costs what it costs alone.

A block-diagonal mask would give the same numbers, at the price of a square of the whole row. Samples that begin alike
(a group's attempts at one task) may also see keys and values of a row before theirs, in which their beginning is once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from transformers import AttentionInterface

from coa.errors import ModelError

NAME: Final = "coa_segments"


@dataclass(frozen=True)
class Beginnings:
    """Of the samples in a row: what another row has of them."""

    layers: Mapping[int, tuple[Tensor, Tensor]]
    """Keys and values of that row, by layer."""
    spans: Sequence[tuple[int, int]]
    """Where each sample's beginning is in it, from and to."""

    def before(self, layer: int, sample: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """What a sample sees: its beginning and itself."""
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
    coa_beginnings: Beginnings | None = None,
    coa_kept: dict[int, tuple[Tensor, Tensor]] | None = None,
    sliding_window: int | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """`query` is [1, heads, tokens, width]; `coa_segments` are the lengths of the samples in the row, in order.

    `coa_kept` gets the row's keys and values, for rows that go on from it with `coa_beginnings`.
    """
    unknown = [name for name in ("softcap", "s_aux", "position_bias") if rest.get(name) is not None]
    if unknown:
        raise ModelError(
            f"this model's attention uses {unknown[0]}, which attention per sample does not know",
            hint="--set attention=eager --set packing=false",
        )
    if coa_kept is not None:
        coa_kept[module.layer_idx] = key, value
    segments = list(coa_segments) if coa_segments is not None else [query.shape[2]]
    pieces = []
    split = zip(*(torch.split(tensor, segments, 2) for tensor in (query, key, value)), strict=True)
    for sample, (q, k, v) in enumerate(split):
        if coa_beginnings is not None:
            k, v = coa_beginnings.before(module.layer_idx, sample, k, v)
        mask = _mask(q.shape[2], k.shape[2], sliding_window, q.device)
        pieces.append(
            torch.nn.functional.scaled_dot_product_attention(
                q, k, v, mask, dropout, is_causal=mask is None, scale=scaling, enable_gqa=q.shape[1] != k.shape[1]
            )
        )
    mixed = pieces[0] if len(pieces) == 1 else torch.cat(pieces, 2)
    return mixed.transpose(1, 2).contiguous(), None


def _mask(new: int, length: int, window: int | None, device: torch.device) -> Tensor | None:
    """What each of the last `new` of so many tokens may see; None where it is what is before it, and it is all new."""
    if new == length and (window is None or length <= window):
        return None
    distance = torch.arange(length - new, length, device=device)[:, None] - torch.arange(length, device=device)
    return distance >= 0 if window is None else (distance >= 0) & (distance < window)


AttentionInterface.register(NAME, attend)
