"""Numbers over attempts, with their definitions. Nothing here knows of files or models.

A task has one value for each attempt: 1 right, 0 not right, or between (F1). An attempt that crashed, gave no answer or
could not be scored has the value 0 here, so that every mean is over all attempts; how many those are is told elsewhere.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean
from typing import Final

Z: Final = NormalDist().inv_cdf(0.975)
"""Of two-sided 95 % intervals."""
RESAMPLES: Final = 2_000


@dataclass(frozen=True, slots=True)
class Estimate:
    value: float
    low: float
    high: float


def pass_at_k(attempts: int, right: int, k: int) -> float:
    """Chance that one of k attempts, drawn from these without putting back, is right: 1 - C(n - c, k) / C(n, k)."""
    if not 1 <= k <= attempts:
        raise ValueError(f"pass@{k} cannot be had from {attempts} attempts")
    return 1.0 - math.comb(attempts - right, k) / math.comb(attempts, k)


def mean(tasks: Sequence[Sequence[float]]) -> Estimate:
    """Mean over tasks of the mean of each task's attempts, with an interval that knows attempts at one task are alike.

    Right or wrong: Wilson's interval; several attempts a task count as the effective number p(1-p) / SE² of independent
    ones, SE being clustered by task, which is at least the number of tasks and at most the number of attempts.
    Values between: the mean and 1.96 clustered standard errors.
    """
    means = [fmean(values) for values in tasks]
    value = fmean(means)
    error = clustered_error(means)
    if any(item not in (0.0, 1.0) for values in tasks for item in values):
        return Estimate(value, max(0.0, value - Z * error), min(1.0, value + Z * error))
    spread = value * (1 - value)
    effective = spread / error**2 if error else 0.0
    attempts = sum(map(len, tasks))
    return wilson(value, min(max(effective, len(tasks)), attempts))


def clustered_error(means: Sequence[float]) -> float:
    """Standard error of a mean of task means."""
    if len(means) < 2:
        return 0.0
    centre = fmean(means)
    return math.sqrt(sum((item - centre) ** 2 for item in means) / (len(means) - 1) / len(means))


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
"""Of a resample, given as positions of tasks; None where it has no value, as a cost per success without success."""


def bootstrap(count: int, statistic: Statistic, *, seed: int = 0, resamples: int = RESAMPLES) -> Estimate | None:
    """The statistic of all tasks, and the middle 95 % of it over resamples of tasks. The same seed, the same interval.

    None if it has no value. Resamples without one are left out of the middle.
    """
    value = statistic(range(count)) if count else None
    if value is None:
        return None
    rng = random.Random(seed)
    positions = range(count)
    drawn = sorted(found for _ in range(resamples) if (found := statistic(rng.choices(positions, k=count))) is not None)
    return Estimate(value, _quantile(drawn, 0.025), _quantile(drawn, 0.975))


def _quantile(ordered: Sequence[float], share: float) -> float:
    if not ordered:
        return math.nan
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


@dataclass(frozen=True, slots=True)
class Difference:
    """Second less first, over the tasks that both have."""

    tasks: int
    success: Estimate
    tokens_per_success: Estimate | None
    """As a ratio: second by first."""
    tool_calls_per_success: Estimate | None


@dataclass(frozen=True, slots=True)
class TaskFigures:
    """Of one task in one run: means over its attempts."""

    success: float
    tokens: float
    tool_calls: float


def paired(first: Sequence[TaskFigures], second: Sequence[TaskFigures], *, seed: int = 0) -> Difference:
    """Both sequences in the same order of tasks; a resample takes a task from both."""

    def success(drawn: Sequence[int]) -> float:
        return sum(second[place].success - first[place].success for place in drawn) / len(drawn)

    def ratio(field: str) -> Statistic:
        ours = [getattr(item, field) for item in first], [item.success for item in first]
        theirs = [getattr(item, field) for item in second], [item.success for item in second]

        def statistic(drawn: Sequence[int]) -> float | None:
            (a, won_a), (b, won_b) = ((_total(spent, drawn), _total(won, drawn)) for spent, won in (ours, theirs))
            return (b / won_b) / (a / won_a) if won_a and won_b and a else None

        return statistic

    found = bootstrap(len(first), success, seed=seed)
    assert found is not None
    return Difference(
        len(first),
        found,
        bootstrap(len(first), ratio("tokens"), seed=seed),
        bootstrap(len(first), ratio("tool_calls"), seed=seed),
    )


def _total(values: Sequence[float], drawn: Sequence[int]) -> float:
    return sum([values[place] for place in drawn])
