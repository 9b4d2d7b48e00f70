"""How often two scorers agree on the same runs, such as a judge and exact match."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from coa.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Agreement:
    """Counts over runs that both scored. A score of 0.5 or more counts as right."""

    both_right: int = 0
    both_wrong: int = 0
    only_first: int = 0
    """Right by the first, wrong by the second."""
    only_second: int = 0
    first_unscored: int = 0
    """The second has a value and the first has none."""
    second_unscored: int = 0
    neither: int = 0

    @property
    def compared(self) -> int:
        return self.both_right + self.both_wrong + self.only_first + self.only_second

    @property
    def rate(self) -> float | None:
        """Share of equal verdicts; None where nothing was compared."""
        return (self.both_right + self.both_wrong) / self.compared if self.compared else None

    @property
    def kappa(self) -> float | None:
        """Cohen's: agreement beyond chance. None where chance alone explains everything."""
        if not self.compared or self.rate is None:
            return None
        total = self.compared
        first, second = (self.both_right + self.only_first) / total, (self.both_right + self.only_second) / total
        chance = first * second + (1 - first) * (1 - second)
        return (self.rate - chance) / (1 - chance) if chance < 1 else None


def agreement(pairs: Iterable[tuple[float | None, float | None]]) -> Agreement:
    counts = dict.fromkeys(Agreement.__slots__, 0)
    for first, second in pairs:
        counts[outcome(first, second)] += 1
    return Agreement(**counts)


def agreement_of(trajectories: Iterable[Trajectory], first: str, second: str) -> Agreement:
    """By the names in `scores`; runs that lack one of them are left out."""
    return agreement(
        (run.scores[first].value, run.scores[second].value)
        for run in trajectories
        if first in run.scores and second in run.scores
    )


def outcome(first: float | None, second: float | None) -> str:
    """The field of `Agreement` that counts this pair of verdicts."""
    if first is None:
        return "neither" if second is None else "first_unscored"
    if second is None:
        return "second_unscored"
    right = first >= 0.5, second >= 0.5
    return {(True, True): "both_right", (False, False): "both_wrong", (True, False): "only_first"}.get(
        right, "only_second"
    )
