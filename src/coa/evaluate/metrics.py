"""Numbers over attempts, with their definitions. Nothing here knows of files or models.

A task has one value for each attempt: 1 right, 0 not right, or between (F1). An attempt that crashed, gave no answer or
could not be scored has the value 0 here, so that every mean is over all attempts; reports count those attempts.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean
from typing import Final

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
    means = [fmean(values) for values in tasks]
    value = fmean(means)
    squares = sum((item - value) ** 2 for item in means)
    error = math.sqrt(squares / (len(means) - 1) / len(means)) if len(means) > 1 else 0.0  # clustered by task
    if any(item not in (0.0, 1.0) for values in tasks for item in values):
        least, most = min(0.0, *means), max(1.0, *means)  # a custom scorer may give other values
        if len(means) < 2:  # one task does not show how tasks differ
            return Estimate(value, least, most)
        return Estimate(value, max(least, value - Z * error), min(most, value + Z * error))
    spread = value * (1 - value)
    effective = spread / error**2 if error else math.inf if spread else 0.0
    attempts = sum(map(len, tasks))
    return wilson(value, min(max(effective, len(tasks)), attempts))


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
    return mean([[value] for value in values])


Statistic = Callable[[Sequence[int]], float | None]
"""Of a resample, given as positions of tasks; None where it has no value, infinite for a cost that bought nothing."""


def bootstrap(
    count: int, statistics: Sequence[Statistic], *, seed: int = 0, resamples: int = RESAMPLES
) -> list[Estimate | None]:
    """Each statistic of all tasks, and the middle 95 % of it over resamples of tasks. Equal seeds, equal intervals.

    None for one without a finite value. Resamples without a value are left out of the middle; infinite ones are in it:
    where more than one in forty bought nothing, what a success costs has no upper end.
    """
    positions = range(count)
    found_all = [statistic(positions) if count else None for statistic in statistics]
    values = [value if value is not None and math.isfinite(value) else None for value in found_all]
    drawn: list[list[float]] = [[] for _ in statistics]
    rng = random.Random(seed)
    for _ in range(resamples if any(value is not None for value in values) else 0):
        sample = rng.choices(positions, k=count)
        for statistic, found in zip(statistics, drawn, strict=True):
            if (value := statistic(sample)) is not None:
                found.append(value)
    for found in drawn:
        found.sort()
    return [
        None if value is None else Estimate(value, _quantile(found, 0.025), _quantile(found, 0.975))
        for value, found in zip(values, drawn, strict=True)
    ]


def _quantile(ordered: Sequence[float], share: float) -> float:
    if not ordered:
        return math.nan
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    if place == below or ordered[above] == ordered[below]:
        return ordered[below]  # also where both are infinite
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


@dataclass(frozen=True, slots=True)
class TaskFigures:
    """Of one task in one run: means over its attempts."""

    success: float
    tokens: float
    tool_calls: float


@dataclass(frozen=True, slots=True)
class Difference:
    """Two runs over the tasks that both have, each resample taking a task from both."""

    tasks: int
    success: Estimate | None
    """Success of the second minus that of the first."""
    tokens_per_success: Estimate | None
    """Ratio of the second to the first; so is the next field."""
    tool_calls_per_success: Estimate | None


def paired(first: Sequence[TaskFigures], second: Sequence[TaskFigures], *, seed: int = 0) -> Difference:
    """Both sequences in the same order of tasks."""
    gains = [after.success - before.success for before, after in zip(first, second, strict=True)]
    in_vain = not any(item.success for item in first)  # nothing to divide by

    def ratio(before: Statistic, after: Statistic) -> Statistic:
        def statistic(drawn: Sequence[int]) -> float | None:
            old, new = before(drawn), after(drawn)
            if in_vain or not old or new is None or (math.isinf(old) and math.isinf(new)):
                return None
            return new / old

        return statistic

    ratios = [ratio(per_success(first, name), per_success(second, name)) for name in ("tokens", "tool_calls")]
    statistics: list[Statistic] = [lambda drawn: _total(gains, drawn) / len(drawn), *ratios]
    return Difference(len(first), *bootstrap(len(first), statistics, seed=seed))


def per_success(tasks: Sequence[TaskFigures], name: str) -> Statistic:
    """What all tasks spent, divided by the number of successes."""
    spent, won = [getattr(item, name) for item in tasks], [item.success for item in tasks]

    def statistic(drawn: Sequence[int]) -> float | None:
        successes, cost = _total(won, drawn), _total(spent, drawn)
        return cost / successes if successes else math.inf if cost else None

    return statistic


def _total(values: Sequence[float], drawn: Sequence[int]) -> float:
    return sum([values[place] for place in drawn])
