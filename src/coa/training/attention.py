"""Attention of samples that share a row: each sees itself and nothing else, and costs what it costs alone.

A block-diagonal mask would give the same numbers, at the price of a square of the whole row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor
from transformers import AttentionInterface

from coa.errors import ModelError

NAME: Final = "coa_segments"


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
    sliding_window: int | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """`query` is [1, heads, tokens, width]; `coa_segments` are the lengths of the samples in the row, in order."""
    unknown = [name for name in ("softcap", "s_aux", "position_bias") if rest.get(name) is not None]
    if unknown:
        raise ModelError(
            f"this model's attention uses {unknown[0]}, which attention per sample does not know",
            cure="--set attention=eager --set packing=false",
        )
    segments = list(coa_segments) if coa_segments is not None else [query.shape[2]]
    pieces = []
    for q, k, v in zip(*(torch.split(tensor, segments, 2) for tensor in (query, key, value)), strict=True):
        mask = _band(q.shape[2], sliding_window, q.device)
        pieces.append(
            torch.nn.functional.scaled_dot_product_attention(
                q, k, v, mask, dropout, is_causal=mask is None, scale=scaling, enable_gqa=q.shape[1] != k.shape[1]
            )
        )
    mixed = pieces[0] if len(pieces) == 1 else torch.cat(pieces, 2)
    return mixed.transpose(1, 2).contiguous(), None


def _band(length: int, window: int | None, device: torch.device) -> Tensor | None:
    if window is None or length <= window:
        return None
    at = torch.arange(length, device=device)
    distance = at[:, None] - at[None, :]
    return (distance >= 0) & (distance < window)


AttentionInterface.register(NAME, attend)
