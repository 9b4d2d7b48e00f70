"""Numbers over attempts, with their definitions. Nothing here knows of files or models.

A task has one value for each attempt: 1 right, 0 not right, or between (F1). An attempt that crashed, gave no answer or
could not be scored has the value 0 here, so that every mean is over all attempts; reports count those attempts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean
from typing import Final

from coa.report import plural

Z: Final = NormalDist().inv_cdf(0.975)
"""Half width of a two-sided 95 % interval, in standard errors."""


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
