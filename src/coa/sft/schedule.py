"""Which samples make which update, from the first to the last, known before training starts and without torch.

The schedule is a function of the settings and of the samples' lengths alone, so a resumed run goes on with exactly the
updates that an uninterrupted one would have had, and `coa.sft.plan` can say what a run will do before it starts.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from coa.errors import TrainingError
from coa.report import plural
from coa.sft.config import SftConfig
from coa.training.rows import balanced, rows_needed

_GROUPED_UPDATES: Final = 32
"""How many updates' samples are sorted together when samples are grouped by length."""


@dataclass(frozen=True)
class Update:
    """The samples of one update, by their phase and their indices in its pool."""

    phase: int
    samples: tuple[int, ...]


@dataclass(frozen=True)
class Schedule:
    """All updates of a run. Every update has the same number of rows."""

    updates: list[Update]
    rows_per_update: int
    longest_row: int
    """Number of tokens of the longest row, which decides how much memory activations take."""


def schedule(lengths: Sequence[Sequence[int]], config: SftConfig, *, processes: int = 1) -> Schedule:
    """The updates for samples of these lengths; `lengths` has one list for each phase of the config."""
    updates = list(_updates(lengths, config))
    batch = len(updates[0].samples)
    if batch % processes:
        raise TrainingError(
            f"an update of {plural(batch, 'sample')} cannot be shared by {processes} processes",
            hint=f"--set batch_size={max(batch // processes, 1) * processes}",
        )
    members = [[lengths[update.phase][index] for index in update.samples] for update in updates]
    needed = batch
    if config.packing:
        limits = [config.micro_batch_tokens or config.phases[update.phase].max_length for update in updates]
        needed = max(rows_needed(found, limit) for found, limit in zip(members, limits, strict=True))
    rows = -(-needed // processes) * processes
    longest = max(sum(found[at] for at in row) for found in members for row in balanced(found, rows))
    return Schedule(updates, rows, longest)


def _updates(lengths: Sequence[Sequence[int]], config: SftConfig) -> Iterator[Update]:
    left = config.max_steps
    batch = min(config.batch_size, *(len(pool) for pool in lengths))
    for number, (pool, phase) in enumerate(zip(lengths, config.phases, strict=True)):
        wanted = max(round(phase.epochs * len(pool) / batch), 1)
        if left is not None:
            # With max_steps the last phase gets the updates that are left; the others keep their number.
            wanted = left if number == len(lengths) - 1 else min(wanted, left)
            left -= wanted
        stream = _stream(pool, random.Random(f"{config.seed} {number}"), batch if config.group_by_length else None)
        for _ in range(wanted):
            yield Update(number, tuple(next(stream) for _ in range(batch)))


def _stream(pool: Sequence[int], rng: random.Random, batch: int | None) -> Iterator[int]:
    """Indices without end, each once per epoch, in another order each time."""
    while True:
        order = list(range(len(pool)))
        rng.shuffle(order)
        yield from order if batch is None else _grouped(order, pool, batch, rng)


def _grouped(order: list[int], pool: Sequence[int], batch: int, rng: random.Random) -> Iterator[int]:
    """Sorted by length within the samples of many updates; these updates are in random order."""
    stretch = batch * _GROUPED_UPDATES
    for start in range(0, len(order), stretch):
        part = sorted(order[start : start + stretch], key=lambda index: -pool[index])
        updates = [part[at : at + batch] for at in range(0, len(part), batch)]
        short = [updates.pop()] if len(updates[-1]) < batch else []
        rng.shuffle(updates)
        for update in [*updates, *short]:
            yield from update
