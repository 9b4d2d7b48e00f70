"""KV memory as slots, one per row, and the attention that reads and writes it.

All tokens of a pass go through the model as one sequence, so the linear layers see one big matrix, whichever rows the
tokens belong to. Only attention knows rows: decoding rows (one token each, slots 0 to n-1) form batches of rows of like
length, because a batch reads as many keys of every row as its longest row has, and chunks of new text (prompts,
observations) come one by one. Keys of grouped-query attention are used as they are, not repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME: Final = "coa_slots"
_SHORT: Final = 256
"""Rows of up to this number of tokens are alike, and then those of up to twice as many, and so on."""


def length_class(tokens: int) -> int:
    """Rows of one class share a batch of attention, in which none reads more than twice the keys that it has."""
    return ((tokens - 1) // _SHORT).bit_length()


class RowBatch(NamedTuple):
    """Decoding rows whose attention is computed together: slots `first` to `last`, which is not in it."""

    first: int
    last: int
    longest: int
    """Number of keys of the longest row."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """New tokens of one row: `first` to `last` in the step's sequence, at `start` in the row's slot."""

    slot: int
    start: int
    first: int
    last: int


class Slots:
    """Keys and values of all rows: for each layer, [slots, heads, length, width]."""

    def __init__(self, model: PreTrainedModel, *, count: int, length: int, dtype: torch.dtype | None = None) -> None:
        """Of the given type, or of the model's."""
        config = model.config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        weight = next(model.parameters())
        self.count, self.length = count, length
        self._layers = int(config.num_hidden_layers)
        self.heads = int(heads)
        self._width = int(width)
        self._dtype, self._device = dtype or weight.dtype, weight.device
        self.bytes_per_token = 2 * self._layers * int(heads) * int(width) * self._dtype.itemsize
        self.keys = self._empty()
        self.values = self._empty()

    def _empty(self) -> list[Tensor]:
        shape = (self.count, self.heads, self.length, self._width)
        return [torch.zeros(shape, dtype=self._dtype, device=self._device) for _ in range(self._layers)]

    def resize(self, *, count: int, length: int, keep: list[tuple[int, int]]) -> None:
        """Change the number of slots or tokens. `keep` lists (old slot, tokens) in the order of the new slots."""
        old_keys, old_values = self.keys, self.values
        self.count, self.length = count, length
        for name, old in (("keys", old_keys), ("values", old_values)):
            new = self._empty()
            for layer, tensor in enumerate(new):
                for slot, (source, tokens) in enumerate(keep):
                    tensor[slot, :, :tokens] = old[layer][source, :, :tokens]
                old[layer] = tensor  # frees the layer before the next one is copied
            setattr(self, name, new)

    def copy(self, source: int, target: int, tokens: int) -> None:
        for buffers in (self.keys, self.values):
            for tensor in buffers:
                tensor[target, :, :tokens] = tensor[source, :, :tokens]

    def swap(self, one: int, other: int, tokens: int) -> None:
        for buffers in (self.keys, self.values):
            for tensor in buffers:
                held = tensor[one, :, :tokens].clone()
                tensor[one, :, :tokens] = tensor[other, :, :tokens]
                tensor[other, :, :tokens] = held


@dataclass
class EngineStep:
    """The layout of one forward pass: first the tokens of the decoding rows in slots 0 to n-1, then the chunks."""

    slots: Slots
    positions: Tensor
    """Positions of the decoding rows' tokens in their slots."""
    chunks: list[Chunk]

    def __post_init__(self) -> None:
        device, heads = self.positions.device, self.slots.heads
        self.decoding = len(self.positions)
        lengths = [position + 1 for position in self.positions.tolist()]
        self.longest = max(lengths, default=0)
        self.batches = list(_batches(lengths))
        # Index of each decoding row's new key in a buffer viewed as a list of [width] vectors.
        first = torch.arange(self.decoding * heads, device=device) * self.slots.length
        self.written = first + self.positions.repeat_interleave(heads)
        self._masks: dict[int | None, Tensor] = {}

    def mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """-inf for the keys that a decoding row may not see, to add to its scores: [rows, 1, 1, keys]. All layers
        share it."""
        if window not in self._masks:
            keys = torch.arange(self.longest, device=self.positions.device)
            distance = self.positions[:, None] - keys[None, :]
            hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
            mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, float("-inf"))
            self._masks[window] = mask[:, None, None, :]
        return self._masks[window]


def _batches(lengths: Sequence[int]) -> Iterator[RowBatch]:
    """Neighbours of one class; `lengths` are those of the rows in slots 0 to n-1."""
    first = 0
    for _, group in groupby(lengths, length_class):
        alike = list(group)
        yield RowBatch(first, first + len(alike), max(alike))
        first += len(alike)


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *,
    scaling: float | None = None, coa_step: EngineStep | None = None, sliding_window: int | None = None, **_: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attention over slots. `query` is [1, heads, tokens, width]; the result [1, tokens, heads, width]."""
    assert coa_step is not None, "this attention needs the layout of the pass"
    step, layer = coa_step, module.layer_idx
    keys, values = step.slots.keys[layer], step.slots.values[layer]
    heads, tokens, width = query.shape[1:]
    groups = heads // key.shape[1]
    scale = scaling if scaling is not None else width**-0.5
    out = query.new_empty(tokens, heads, width)
    n = step.decoding
    if n:
        for buffer, new in ((keys, key), (values, value)):
            buffer.view(-1, width).index_copy_(0, step.written, new[0, :, :n].transpose(0, 1).reshape(-1, width))
        asked = (query[0, :, :n].transpose(0, 1) * scale).reshape(n, -1, groups, width)
        mask = step.mask(sliding_window, asked.dtype)
        for rows, longest in ((slice(batch.first, batch.last), batch.longest) for batch in step.batches):
            scores = asked[rows] @ keys[rows, :, :longest].transpose(-1, -2)
            scores += mask[rows, :, :, :longest]
            out[rows] = (scores.softmax(-1) @ values[rows, :, :longest]).reshape(-1, heads, width)
    for chunk in step.chunks:
        first, last, end = chunk.first, chunk.last, chunk.start + chunk.last - chunk.first
        keys[chunk.slot, :, chunk.start : end] = key[0, :, first:last]
        values[chunk.slot, :, chunk.start : end] = value[0, :, first:last]
        size = last - first
        asked = (query[0, :, first:last] * scale).reshape(-1, groups * size, width)
        scores = (asked @ keys[chunk.slot, :, :end].transpose(-1, -2)).view(-1, groups, size, end)
        distance = torch.arange(chunk.start, end, device=out.device)[:, None] - torch.arange(end, device=out.device)
        hidden = distance < 0
        if sliding_window is not None:
            hidden = hidden | (distance >= sliding_window)
        scores.masked_fill_(hidden, float("-inf"))
        mixed = scores.softmax(-1).view(-1, groups * size, end) @ values[chunk.slot, :, :end]
        out[first:last] = mixed.view(heads, size, width).transpose(0, 1)
    return out.unsqueeze(0), None


ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
