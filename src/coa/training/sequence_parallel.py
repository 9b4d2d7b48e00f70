"""One row on several processes: sequence parallelism, for rows whose activations do not fit into one device.

Each process of a group has a piece of the row's tokens, and computes everything but attention for them alone: that part
of a transformer does not mix tokens. For attention the processes exchange: each gives the others its tokens' queries,
keys and values of some heads, and gets all tokens of its own heads, so that it can compute attention over the whole
row for these heads. A second exchange takes the result back to pieces of tokens. (DeepSpeed calls this Ulysses.)

Because a process sees whole samples in attention, this works with packed rows, whose samples attend to themselves
alone. accelerate's own context parallelism does not: it needs plain causal attention over the whole row.

The loss of a piece is the share of its labels, so the pieces' losses and gradients add up to those of the row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from coa.errors import TrainingError


@dataclass(frozen=True)
class SequenceGroup:
    """The processes that share a row; each has as many tokens as the others."""

    group: dist.ProcessGroup
    size: int

    @classmethod
    def of(cls, size: int, processes: int, heads: int, key_heads: int) -> SequenceGroup | None:
        """The group of this process, None if rows are not divided. All processes must call it."""
        if size == 1:
            return None
        check_sizes(size, processes, heads, key_heads)
        group, _ = dist.new_subgroups(group_size=size)  # type: ignore[no-untyped-call]
        return cls(group, size)

    def to_heads(self, tensor: Tensor) -> Tensor:
        """From a piece of the tokens with all heads, [1, heads, tokens, width], to all tokens with a part of the heads,
        [1, heads / size, tokens * size, width]. Where there are fewer key heads than processes, each has a copy."""
        if tensor.shape[1] < self.size:
            tensor = tensor.repeat_interleave(self.size // tensor.shape[1], 1)
        _, heads, tokens, width = tensor.shape
        parts = tensor.reshape(self.size, heads // self.size, tokens, width)
        gathered = _Exchange.apply(parts, self.group)  # type: ignore[no-untyped-call]
        return gathered.transpose(0, 1).reshape(1, heads // self.size, self.size * tokens, width)  # type: ignore[no-any-return]

    def to_tokens(self, tensor: Tensor) -> Tensor:
        """The way back: [1, heads / size, tokens * size, width] to [1, heads, tokens, width]."""
        _, heads, tokens, width = tensor.shape
        parts = tensor.reshape(heads, self.size, tokens // self.size, width).transpose(0, 1)
        return _Exchange.apply(parts, self.group).reshape(1, heads * self.size, tokens // self.size, width)  # type: ignore[no-any-return, no-untyped-call]


def check_sizes(size: int, processes: int, heads: int, key_heads: int) -> None:
    """Refuse a number of processes for each row that the model's heads or the processes cannot be divided by."""
    if processes % size:
        raise TrainingError(
            f"sequence_parallel_size: groups of {size} processes cannot be formed from {processes}",
            hint="start a multiple of sequence_parallel_size processes",
        )
    if heads % size or (key_heads % size and size % key_heads):
        fitting = [n for n in range(1, heads + 1) if not (heads % n or (key_heads % n and n % key_heads))]
        raise TrainingError(
            f"sequence_parallel_size: {heads} heads with {key_heads} key heads cannot be divided by {size}",
            hint=f"for this model it can be {', '.join(map(str, fitting))}",
        )


def piece_of(row: Mapping[str, Any], number: int, pieces: int) -> dict[str, Any]:
    """One of the equal pieces of a row. Tokens that fill it up are a sample of their own without labels."""
    tokens = row["input_ids"].shape[1]
    missing = -tokens % pieces
    filling = torch.arange(missing)[None]
    ids = torch.cat([row["input_ids"], torch.zeros_like(filling)], 1)
    positions = torch.cat([row["position_ids"], filling], 1)
    size = ids.shape[1] // pieces
    first, end = number * size, (number + 1) * size
    mine = (row["where"] >= first) & (row["where"] < end)
    return {
        "input_ids": ids[:, first:end],
        "position_ids": positions[:, first:end],
        "segments": (*row["segments"], missing) if missing else row["segments"],
        "where": row["where"][mine] - first,
        "targets": row["targets"][mine],
        "scales": row["scales"][mine],
    }


class _Exchange(torch.autograd.Function):
    """Part n of each process goes to process n of the group. Its own inverse, so gradients take the same way."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _exchanged(parts, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _exchanged(grads[0], ctx.group), None


def _exchanged(parts: Tensor, group: dist.ProcessGroup) -> Tensor:
    parts = parts.contiguous()
    found = torch.empty_like(parts)
    dist.all_to_all_single(found, parts, group=group)
    return found
