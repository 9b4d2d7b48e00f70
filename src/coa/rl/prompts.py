"""What attempts begin with goes through the model once, not once for each of them.

A group's attempts have one prompt, which may be longer than what they write. Its keys and values are computed; the
attempts see them, and leave in them what they would have learnt of the prompt; then that goes back through the prompt,
computed again, for all of them at once. So the gradient is the same, and only the keys and values are kept meanwhile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

import torch
from torch import Tensor
from transformers import PreTrainedModel

from coa.training.attention import Beginnings
from coa.training.packing import Example, on, to_row
from coa.training.policy import keys_of

WORTHWHILE: Final = 16
"""Tokens below which a prompt is not worth a pass of its own."""


@dataclass
class Part:
    """Attempts that are learnt from together, by their numbers, and the beginnings that some of them share."""

    members: list[int] = field(default_factory=list)
    shared: list[Tensor] = field(default_factory=list)
    whose: dict[int, int] = field(default_factory=dict)
    """Which of `shared` an attempt begins with; the others begin with nothing that is shared."""

    def begin(self, member: int) -> int:
        """Where what is an attempt's own begins."""
        return len(self.shared[self.whose[member]]) if member in self.whose else 0

    def spans(self, members: Sequence[int]) -> list[tuple[int, int]]:
        ends = list(accumulate(map(len, self.shared)))
        return [
            (ends[self.whose[m]] - self.begin(m), ends[self.whose[m]]) if m in self.whose else (0, 0) for m in members
        ]


def parts_of(examples: Sequence[Example], room: int) -> Iterator[Part]:
    """All of them, in parts whose beginnings fit into a row of so many tokens.

    A beginning ends a token before the prompt does: that token's hidden state says what the attempt writes first.
    """
    alike = defaultdict[bytes, list[int]](list)
    own = []
    for number, example in enumerate(examples):
        length = _first_label(example) - 1
        if length >= WORTHWHILE:
            alike[example.ids[:length].numpy().tobytes()].append(number)
        else:
            own.append(number)
    own += [members[0] for members in alike.values() if len(members) == 1]
    part = Part(sorted(own))
    taken = 0
    for members in alike.values():
        if len(members) == 1:
            continue
        ids = examples[members[0]].ids[: _first_label(examples[members[0]]) - 1]
        if taken and taken + len(ids) > room:
            yield part
            part, taken = Part(), 0
        part.whose.update(dict.fromkeys(members, len(part.shared)))
        part.members.extend(members)
        part.shared.append(ids)
        taken += len(ids)
    if part.members:
        yield part


def _first_label(example: Example) -> int:
    labelled = example.weights.nonzero()
    return int(labelled[0]) if len(labelled) else 0


class Shared:
    """The beginnings of a part in use: `beginnings` while its attempts are gone through, then `learn`."""

    def __init__(self, model: PreTrainedModel, part: Part, device: torch.device) -> None:
        self._model, self._part = model, part
        self._row = on(device, to_row([Example(ids, torch.zeros(len(ids))) for ids in part.shared], total_weight=1.0))
        # The lowest layers may be frozen. Nothing has to go back through them, and nothing may seem to.
        learnt = keys_of(model, {**self._row, **_first_token(self._row)})
        with torch.no_grad():
            self._layers = {
                layer: (
                    key.requires_grad_(learnt[layer][0].requires_grad),
                    value.requires_grad_(learnt[layer][1].requires_grad),
                )
                for layer, (key, value) in keys_of(model, self._row).items()
            }

    def beginnings(self, members: Sequence[int]) -> Beginnings:
        return Beginnings(self._layers, self._part.spans(members))

    def learn(self) -> None:
        """What the attempts left goes back through the beginnings."""
        left = [
            (layer, which, kept.grad)
            for layer, pair in self._layers.items()
            for which, kept in enumerate(pair)
            if kept.grad is not None
        ]
        if left:
            again = keys_of(self._model, self._row)
            torch.autograd.backward([again[layer][which] for layer, which, _ in left], [grad for *_, grad in left])


def _first_token(row: dict[str, Any]) -> dict[str, Any]:
    return {"input_ids": row["input_ids"][:, :1], "position_ids": row["position_ids"][:, :1], "segments": (1,)}
