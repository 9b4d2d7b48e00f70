"""Packing: samples of different lengths become rows without padding.

A row is what goes through the model at a time: several samples one after another, with position ids that start again at
each sample, and attention that keeps them apart (`attention.py`). Which samples make an update is decided before this;
packing only decides which of them share a row. So it changes how fast an update is, not what it computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class TokenSample:
    """A sample as training needs it: token ids, and the weight of each as a label."""

    ids: Tensor  # [tokens]
    weights: Tensor  # [tokens]; 0 where a token is not a label
    task_id: str = ""
    targets: Tensor | None = None  # [tokens]
    """The labels, where they are not the ids themselves."""
    start: int = 0
    """Position of the first id, if the tokens before it are in another row."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def weight(self) -> float:
        return float(self.weights.sum())

    def after(self, first: int) -> TokenSample:
        """The sample without its first `first` tokens."""
        targets = None if self.targets is None else self.targets[first:]
        return TokenSample(self.ids[first:], self.weights[first:], self.task_id, targets, self.start + first)

    @property
    def labels(self) -> int:
        return int((self.weights > 0).sum())


def to_row(examples: Sequence[TokenSample], *, total_weight: float) -> dict[str, Tensor | tuple[int, ...]]:
    """What the model is fed. Losses of rows add up to the mean over labels if `total_weight` is that of all rows.

    `input_ids` and `position_ids` are [1, tokens]; `where`, `targets` and `scales` are [labels]. `where` are the
    positions whose hidden state predicts a label, which is the position before it. A sample's first token has no
    position before it in its sample, so it is never a label.
    """
    segments = tuple(len(example) for example in examples)
    ids = torch.cat([example.ids for example in examples]).long()
    targets = torch.cat([example.ids if example.targets is None else example.targets for example in examples]).long()
    weights = torch.cat([_without_first(example.weights) for example in examples])
    labelled = weights.nonzero()[:, 0]
    return {
        "input_ids": ids[None],
        "position_ids": torch.cat([torch.arange(e.start, e.start + len(e)) for e in examples])[None],
        "segments": segments,
        "where": labelled - 1,
        "targets": targets[labelled],
        "scales": weights[labelled] / total_weight,
    }


def on(device: torch.device, row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with its tensors on the device."""
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in row.items()}


def _without_first(weights: Tensor) -> Tensor:
    weights = weights.clone()
    weights[:1] = 0
    return weights
