"""Rows for the model: samples laid one after another, no padding, position ids that start anew with each sample.

Which samples make an update is decided before this; packing decides only which of them share a row, so it changes how
fast an update is and not what it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Example:
    """A sample as training needs it: ids, and how much each of them counts as a label (0: not one)."""

    ids: Tensor
    weights: Tensor
    task_id: str = ""
    targets: Tensor | None = None
    """What is to be predicted, where that is not the ids."""
    start: int = 0
    """Position of the first id, where what is before it is in another row."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def weight(self) -> float:
        return float(self.weights.sum())

    def after(self, first: int) -> Example:
        """Without the first so many ids."""
        targets = None if self.targets is None else self.targets[first:]
        return Example(self.ids[first:], self.weights[first:], self.task_id, targets, self.start + first)

    @property
    def labels(self) -> int:
        return int((self.weights > 0).sum())


def to_row(examples: Sequence[Example], *, total_weight: float) -> dict[str, Tensor | tuple[int, ...]]:
    """What the model is fed. Losses of rows add up to the mean over labels when `total_weight` is that of all rows.

    `where` are the positions whose hidden state predicts a label: the ones before it. A sample's first token has no
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
    """A row where it is computed."""
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in row.items()}


def _without_first(weights: Tensor) -> Tensor:
    weights = weights.clone()
    weights[:1] = 0
    return weights


def rows_needed(lengths: Sequence[int], row_tokens: int) -> int:
    """The smallest number of rows into which `balanced` fits them."""
    rows = max(-(-sum(lengths) // row_tokens), 1)
    while rows < len(lengths) and max(_loads(lengths, balanced(lengths, rows))) > row_tokens:
        rows += 1
    return rows


def balanced(lengths: Sequence[int], rows: int) -> list[list[int]]:
    """Indices of the lengths in `rows` rows of about equal sums, the longest row first: the longest sample goes to the
    shortest row, time and again. Rows that work at the same time on several devices then take about the same time."""
    parts: list[list[int]] = [[] for _ in range(rows)]
    loads = [0] * rows
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        least = min(range(rows), key=lambda row: (loads[row], row))
        parts[least].append(index)
        loads[least] += lengths[index]
    order = sorted(range(rows), key=lambda row: (-loads[row], row))
    return [sorted(parts[row]) for row in order]


def _loads(lengths: Sequence[int], rows: Sequence[Sequence[int]]) -> list[int]:
    return [sum(lengths[index] for index in row) for row in rows]
