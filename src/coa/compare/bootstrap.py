"""The bootstrap of a comparison: costs per success and differences, with intervals over resamples of the tasks."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from coa.evaluate.metrics import Estimate

RESAMPLES: Final = 2_000
_BLOCK: Final = 1 << 15
"""Number of tasks whose columns, of two runs, and counts fit into two megabytes."""


@dataclass(frozen=True, slots=True)
class TaskColumns:
    """Of one run: for each task the means over its attempts. Columns of numbers, because a million tasks must fit."""

    success: array[float] = field(default_factory=lambda: array("d"))
    tokens: array[float] = field(default_factory=lambda: array("d"))
    tool_calls: array[float] = field(default_factory=lambda: array("d"))

    @classmethod
    def of(cls, rows: Iterable[tuple[float, float, float]]) -> TaskColumns:
        found = cls()
        for row in rows:
            found.add(*row)
        return found

    def add(self, success: float, tokens: float, tool_calls: float) -> None:
        self.success.append(success)
        self.tokens.append(tokens)
        self.tool_calls.append(tool_calls)

    def at(self, places: Sequence[int]) -> TaskColumns:
        """The same for some of the tasks."""
        if len(places) == len(self):
            return self
        return TaskColumns(*(array("d", [column[place] for place in places]) for column in self.columns))

    @property
    def columns(self) -> tuple[array[float], array[float], array[float]]:
        return self.success, self.tokens, self.tool_calls

    def __len__(self) -> int:
        return len(self.success)


Sums = tuple[float, float, float]
"""Of a run over some tasks, or over a resample of them: success, tokens, tool calls."""


def resample(runs: Sequence[TaskColumns], *, seed: int = 0, resamples: int = RESAMPLES) -> list[list[Sums]]:
    """For each run its sums over resamples of the tasks. All runs have the same tasks, and get the same resamples.

    A resample draws as many tasks as there are, with replacement. The tasks are cut into blocks that fit into the
    processor's cache. How many draws fall into each block is drawn first, for all resamples, then which tasks of the
    block they are: together this is the same as drawing from all tasks. A task that is drawn twice counts twice, so
    the sums of a resample are the products of the columns with the number of times that each task was drawn.
    """
    count = len(runs[0])
    if not count:
        return [[] for _ in runs]
    columns = [np.frombuffer(column) for run in runs for column in run.columns]
    starts = range(0, count, _BLOCK)
    sizes = [min(_BLOCK, count - start) for start in starts]
    bits = np.random.PCG64(seed)
    draws = np.random.Generator(bits).multinomial(count, [size / count for size in sizes], size=resamples)
    sums = np.zeros((resamples, len(columns)))
    for at, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        block = np.stack([column[start : start + size] for column in columns])
        for row, number in enumerate(draws[:, at].tolist()):
            # einsum and not `@`, which starts threads and adds in an order that depends on their number.
            sums[row] += np.einsum("ct,t->c", block, _times_drawn(bits, size, number))
    return [list(map(tuple, sums[:, 3 * at : 3 * at + 3].tolist())) for at in range(len(runs))]


def _times_drawn(bits: np.random.PCG64, size: int, number: int) -> npt.NDArray[np.float64]:
    """How often each of the tasks of a block is among this number of draws."""
    drawn = bits.random_raw((number + 1) // 2).view(np.uint32)[:number]
    # A number below 2**32, scaled down to one below `size`.
    places = drawn * np.uint64(size) >> np.uint64(32)
    return np.bincount(places.view(np.int64), minlength=size).astype(np.float64)


def interval(value: float | None, resampled: Iterable[float | None]) -> Estimate | None:
    """A value of all tasks with the middle 95 % of what it is over resamples; None for one that is not finite.

    Resamples without a value are left out of the middle; infinite ones are in it: where more than one in forty bought
    nothing, what a success costs has no upper end.
    """
    if value is None or not math.isfinite(value):
        return None
    ordered = sorted(item for item in resampled if item is not None)
    return Estimate(value, _quantile(ordered, 0.025), _quantile(ordered, 0.975))


def _quantile(ordered: Sequence[float], share: float) -> float:
    if not ordered:
        return math.nan
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    if place == below or ordered[above] == ordered[below]:
        return ordered[below]  # also where both are infinite
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


Cost = Callable[[Sums], float | None]


def tokens_per_success(sums: Sums) -> float | None:
    return _per_success(sums[1], sums[0])


def tool_calls_per_success(sums: Sums) -> float | None:
    return _per_success(sums[2], sums[0])


def _per_success(spent: float, successes: float) -> float | None:
    """What all tasks spent by the number of successes: infinite if it bought none, None where nothing was spent."""
    return spent / successes if successes else math.inf if spent else None


def cost_interval(run: TaskColumns, resampled: Sequence[Sums], cost: Cost) -> Estimate | None:
    return interval(cost(_sums(run)), map(cost, resampled))


@dataclass(frozen=True, slots=True)
class Difference:
    """Two runs over the tasks that both have, each resample taking a task from both."""

    tasks: int
    success: Estimate | None
    """Success of the second minus that of the first."""
    tokens_per_success: Estimate | None
    """Ratio of the second to the first; so is the next field."""
    tool_calls_per_success: Estimate | None


def paired(first: TaskColumns, second: TaskColumns, resampled: Sequence[Sequence[Sums]] | None = None) -> Difference:
    """Both with the same tasks in the same order. `resampled` are the sums of both, if they were drawn already."""
    count = len(first)
    before, after = resampled or resample([first, second])
    gain = sum(new - old for old, new in zip(first.success, second.success, strict=True)) / count if count else None
    gains = ((new[0] - old[0]) / count for old, new in zip(before, after, strict=True))
    in_vain = not any(first.success)  # nothing to divide by

    def ratio(cost: Cost) -> Estimate | None:
        def one(old_sums: Sums, new_sums: Sums) -> float | None:
            old, new = cost(old_sums), cost(new_sums)
            if in_vain or not old or new is None or (math.isinf(old) and math.isinf(new)):
                return None
            return new / old

        return interval(one(_sums(first), _sums(second)), map(one, before, after))

    return Difference(count, interval(gain, gains), ratio(tokens_per_success), ratio(tool_calls_per_success))


def _sums(run: TaskColumns) -> Sums:
    return sum(run.success), sum(run.tokens), sum(run.tool_calls)
