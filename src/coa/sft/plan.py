"""Which samples make which update, from the first to the last, known before training starts.

The plan is a function of the settings and the data alone, so a resumed run goes on with exactly the rows that an
uninterrupted one would have had. Packing only divides an update's samples into rows.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch.utils.data import Dataset

from coa.errors import TrainingError
from coa.report import plural
from coa.sft.config import SftConfig
from coa.training.packing import TokenSample, balanced, rows_needed, to_row

_GROUPED_UPDATES: Final = 32
"""How many updates' samples are sorted together when samples are grouped by length."""


@dataclass(frozen=True)
class Update:
    """The samples of one update, by their phase and their indices in its pool."""

    phase: int
    samples: tuple[int, ...]


class UpdatePlan(Dataset[dict[str, Any]]):
    """All rows of a run, in order. Every update has the same number of rows."""

    def __init__(self, pools: Sequence[Sequence[TokenSample]], config: SftConfig, *, processes: int = 1) -> None:
        self.pools = pools
        self.updates = list(_updates(pools, config))
        batch = len(self.updates[0].samples)
        if batch % processes:
            raise TrainingError(
                f"an update of {plural(batch, 'sample')} cannot be shared by {processes} processes",
                hint=f"--set batch_size={max(batch // processes, 1) * processes}",
            )
        needed = max(self._needed(update, config) for update in self.updates) if config.packing else batch
        self.rows_per_update = -(-needed // processes) * processes

    def _needed(self, update: Update, config: SftConfig) -> int:
        limit = config.micro_batch_tokens or config.phases[update.phase].max_length
        return rows_needed([len(example) for example in self.examples(update)], limit)

    def end_after(self, updates: int) -> None:
        """Drop the updates after this number."""
        del self.updates[updates:]

    def examples(self, update: Update) -> list[TokenSample]:
        return [self.pools[update.phase][index] for index in update.samples]

    def __len__(self) -> int:
        return len(self.updates) * self.rows_per_update

    def __getitem__(self, index: int) -> dict[str, Any]:
        number, row = divmod(index, self.rows_per_update)
        examples = self.examples(self.updates[number])
        rows = balanced([len(example) for example in examples], self.rows_per_update)
        total = sum(example.weight for example in examples)
        return to_row([examples[at] for at in rows[row]], total_weight=total)


class HeldOut(Dataset[dict[str, Any]]):
    """Rows of held-out samples. The mean of their losses is the mean over all their labels."""

    def __init__(self, examples: Sequence[TokenSample], max_tokens: int) -> None:
        lengths = [len(example) for example in examples]
        parts = balanced(lengths, rows_needed(lengths, max_tokens)) if examples else []
        self._rows = [[examples[at] for at in part] for part in parts]
        self._total = sum(example.weight for example in examples)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return to_row(self._rows[index], total_weight=self._total / len(self._rows))


def _updates(pools: Sequence[Sequence[TokenSample]], config: SftConfig) -> Iterator[Update]:
    left = config.max_steps
    batch = min(config.batch_size, *(len(pool) for pool in pools))
    for number, (pool, phase) in enumerate(zip(pools, config.phases, strict=True)):
        wanted = max(round(phase.epochs * len(pool) / batch), 1)
        if left is not None:
            # With max_steps the last phase gets the updates that are left; the others keep their number.
            wanted = left if number == len(pools) - 1 else min(wanted, left)
            left -= wanted
        stream = _stream(pool, random.Random(f"{config.seed} {number}"), batch if config.group_by_length else None)
        for _ in range(wanted):
            yield Update(number, tuple(next(stream) for _ in range(batch)))


def _stream(pool: Sequence[TokenSample], rng: random.Random, batch: int | None) -> Iterator[int]:
    """Indices without end, each once per epoch, in another order each time."""
    while True:
        order = list(range(len(pool)))
        rng.shuffle(order)
        yield from order if batch is None else _grouped(order, pool, batch, rng)


def _grouped(order: list[int], pool: Sequence[TokenSample], batch: int, rng: random.Random) -> Iterator[int]:
    """Sorted by length within the samples of many updates; these updates are in random order."""
    stretch = batch * _GROUPED_UPDATES
    for start in range(0, len(order), stretch):
        part = sorted(order[start : start + stretch], key=lambda index: -len(pool[index]))
        updates = [part[at : at + batch] for at in range(0, len(part), batch)]
        short = [updates.pop()] if len(updates[-1]) < batch else []
        rng.shuffle(updates)
        for update in [*updates, *short]:
            yield from update
