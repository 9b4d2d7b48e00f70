"""Numbers over attempts, with their definitions. Nothing here knows of files or models.

A task has one value for each attempt: 1 right, 0 not right, or between (F1). An attempt that crashed, gave no answer or
could not be scored has the value 0 here, so that every mean is over all attempts; reports count those attempts.
"""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist, fmean
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from coa.report import plural

Z: Final = NormalDist().inv_cdf(0.975)
"""Half width of a two-sided 95 % interval, in standard errors."""
RESAMPLES: Final = 2_000


@dataclass(frozen=True, slots=True)
class Estimate:
    value: float
    low: float
    high: float


def pass_at_k(attempts: int, right: int, k: int) -> float:
    """Chance that one of k attempts, drawn from these without putting back, is right: 1 - C(n - c, k) / C(n, k)."""
    if not 1 <= k <= attempts:
        raise ValueError(f"pass@{k} cannot be computed from {plural(attempts, 'attempt')}")
    return 1.0 - math.comb(attempts - right, k) / math.comb(attempts, k)


def mean(tasks: Sequence[Sequence[float]]) -> Estimate:
    """Mean over tasks of the mean of each task's attempts, with an interval that knows attempts at one task are alike.

    Right or wrong: Wilson's interval; several attempts a task count as the effective number p(1-p) / SE² of independent
    ones, SE being clustered by task, which is at least the number of tasks and at most the number of attempts.
    Values between: the mean and 1.96 clustered standard errors.
    """
    binary = all(item in (0.0, 1.0) for values in tasks for item in values)
    return mean_of([fmean(values) for values in tasks], sum(map(len, tasks)), binary=binary)


def mean_of(means: Sequence[float], attempts: int, *, binary: bool) -> Estimate:
    """`mean`, from the mean of each task and the number of attempts; `binary` if these are right or wrong."""
    value = fmean(means)
    squares = sum((item - value) ** 2 for item in means)
    error = math.sqrt(squares / (len(means) - 1) / len(means)) if len(means) > 1 else 0.0  # clustered by task
    if not binary:
        least, most = min(0.0, *means), max(1.0, *means)  # a custom scorer may give other values
        if len(means) < 2:  # one task does not show how tasks differ
            return Estimate(value, least, most)
        return Estimate(value, max(least, value - Z * error), min(most, value + Z * error))
    spread = value * (1 - value)
    effective = spread / error**2 if error else math.inf if spread else 0.0
    return wilson(value, min(max(effective, len(means)), attempts))


def wilson(share: float, count: float) -> Estimate:
    """Wilson's score interval; unlike p ± 1.96 SE it stays within 0 and 1 and is never empty."""
    if not count:
        return Estimate(share, 0.0, 1.0)
    centre = (share + Z**2 / (2 * count)) / (1 + Z**2 / count)
    half = Z / (1 + Z**2 / count) * math.sqrt(share * (1 - share) / count + Z**2 / (4 * count**2))
    return Estimate(share, min(share, max(0.0, centre - half)), max(share, min(1.0, centre + half)))


def shares(values: Sequence[float]) -> Estimate:
    """Of one value a task that is itself a chance, such as pass@k: mean and 1.96 standard errors over tasks.

    Where all values are 0 or 1 they are right or wrong, and Wilson's interval is used.
    """
    return mean_of(values, len(values), binary=all(value in (0.0, 1.0) for value in values))


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

    A resample draws as many tasks as there are, with replacement. The draws are those of Python's generator, so equal
    seeds give equal sums on every machine; Arrow does the arithmetic, because a hundred thousand tasks are drawn two
    thousand times.
    """
    count = len(runs[0])
    columns = [_arrow(pa.float64(), column) for run in runs for column in run.columns]
    many, bits = _arrow(pa.uint64(), array("Q", [count, 32]))  # `pa.scalar` would import pandas, which takes 0.3 s
    rng = random.Random(seed)
    found: list[list[Sums]] = [[] for _ in runs]
    for _ in range(resamples if count else 0):
        drawn = _arrow(pa.uint32(), array("I", rng.randbytes(4 * count)))
        # A number below 2**32, scaled down to one below `count`.
        places = pc.shift_right(pc.multiply(drawn.cast(pa.uint64()), many), bits)
        sums = [pc.sum(pc.take(column, places, boundscheck=False)).as_py() for column in columns]
        for at, sink in enumerate(found):
            sink.append((sums[3 * at], sums[3 * at + 1], sums[3 * at + 2]))
    return found


def _arrow(kind: pa.DataType, numbers: array[Any]) -> pa.Array:
    """The same memory as an Arrow array."""
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


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
