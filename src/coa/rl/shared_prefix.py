"""Shared-prefix batching: the prompt of a group goes through the model once, not once for each attempt.

All attempts at a task begin with the same prompt, which may be longer than what they write. Computing it for every
attempt can be most of the work of an update. Here it is computed in four steps, and the gradient comes out the same:

1. The prompts of a batch go through the model without a gradient. Only their keys and values are kept, layer by layer,
   and marked as wanting a gradient.
2. Each attempt goes through the model without its prompt; attention sees the kept keys and values before its own.
3. The backward pass of the attempts leaves the gradient of the loss with respect to the kept keys and values in them,
   summed over all attempts that share a prompt.
4. The prompts go through the model once more, now with a gradient, and that sum is sent back through them (`backward`).

So a prompt costs two forward passes and one backward pass for the whole group, and between steps 1 and 4 nothing of it
but keys and values is in memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

import torch
from torch import Tensor
from transformers import PreTrainedModel

from coa.training.attention import PrefixCache
from coa.training.packed_model import keys_of
from coa.training.packing import TokenSample, on, to_row

WORTHWHILE: Final = 16
"""A prompt with fewer tokens is not shared: another pass would cost more than it saves."""


@dataclass
class PrefixBatch:
    """Attempts that are computed together, by their numbers, and the prefixes that some of them share."""

    members: list[int] = field(default_factory=list)
    prefixes: list[Tensor] = field(default_factory=list)  # of token ids, each [length]
    prefix_of: dict[int, int] = field(default_factory=dict)
    """Which of `prefixes` an attempt begins with; attempts that are not here share no prefix."""

    def prefix_length(self, member: int) -> int:
        """How many of an attempt's tokens are in its shared prefix."""
        return len(self.prefixes[self.prefix_of[member]]) if member in self.prefix_of else 0

    def spans(self, members: Sequence[int]) -> list[tuple[int, int]]:
        """Where the attempts' prefixes are in a row that holds all prefixes one after another; (0, 0) for none."""
        ends = list(accumulate(map(len, self.prefixes)))
        return [
            (ends[self.prefix_of[m]] - self.prefix_length(m), ends[self.prefix_of[m]])
            if m in self.prefix_of
            else (0, 0)
            for m in members
        ]


def prefix_batches(samples: Sequence[TokenSample], max_tokens: int) -> Iterator[PrefixBatch]:
    """All samples, in batches whose prefixes fit into a row of `max_tokens` tokens.

    A prefix ends one token before the prompt does: that token's hidden state predicts what the attempt writes first.
    """
    alike = defaultdict[bytes, list[int]](list)
    alone = []
    for number, sample in enumerate(samples):
        length = _first_label(sample) - 1
        if length >= WORTHWHILE:
            alike[sample.ids[:length].numpy().tobytes()].append(number)
        else:
            alone.append(number)
    alone += [members[0] for members in alike.values() if len(members) == 1]
    batch = PrefixBatch(sorted(alone))
    taken = 0
    for members in alike.values():
        if len(members) == 1:
            continue
        ids = samples[members[0]].ids[: _first_label(samples[members[0]]) - 1]
        if taken and taken + len(ids) > max_tokens:
            yield batch
            batch, taken = PrefixBatch(), 0
        batch.prefix_of.update(dict.fromkeys(members, len(batch.prefixes)))
        batch.members.extend(members)
        batch.prefixes.append(ids)
        taken += len(ids)
    if batch.members:
        yield batch


def _first_label(sample: TokenSample) -> int:
    labelled = sample.weights.nonzero()
    return int(labelled[0]) if len(labelled) else 0


class SharedPrefixes:
    """The prefixes of a batch in use: `cache_for` while its attempts are computed, then `backward`."""

    def __init__(self, model: PreTrainedModel, batch: PrefixBatch, device: torch.device) -> None:
        self._model, self._batch = model, batch
        samples = [TokenSample(ids, torch.zeros(len(ids))) for ids in batch.prefixes]
        self._row = on(device, to_row(samples, total_weight=1.0))
        # The lowest layers may be frozen. A gradient must neither go back through them nor be collected in them; a pass
        # over a single token shows which keys and values have one.
        first = {name: self._row[name][:, :1] for name in ("input_ids", "position_ids")}
        probe = keys_of(model, {**self._row, **first, "segments": (1,)})
        with torch.no_grad():
            self._layers = {  # by layer: keys and values, each [1, heads, tokens, width]
                layer: (
                    key.requires_grad_(probe[layer][0].requires_grad),
                    value.requires_grad_(probe[layer][1].requires_grad),
                )
                for layer, (key, value) in keys_of(model, self._row).items()
            }

    def cache_for(self, members: Sequence[int]) -> PrefixCache:
        """What attention of these attempts, in this order in a row, sees before their own tokens."""
        return PrefixCache(self._layers, self._batch.spans(members))

    def backward(self) -> None:
        """Send the gradients that the attempts left in the keys and values back through the prefixes."""
        collected = [
            (layer, which, tensor.grad)
            for layer, pair in self._layers.items()
            for which, tensor in enumerate(pair)
            if tensor.grad is not None
        ]
        if collected:
            again = keys_of(self._model, self._row)
            torch.autograd.backward(
                [again[layer][which] for layer, which, _ in collected], [grad for *_, grad in collected]
            )
