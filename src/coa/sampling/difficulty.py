"""Which tasks are worth RL: neither too easy nor hopeless, and not solved without tools. Only arithmetic is here.

An attempt that could not be scored counts neither as solved nor as failed. A task is decided by its scored attempts if
these are at least half of the planned ones; two that differ are enough to know that a group of attempts will differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from pydantic import Field, JsonValue

from coa.trajectory.types import Frozen


class Fate(StrEnum):
    """Whether a task is kept, and if not, why it is dropped."""

    KEPT = "kept"
    IN_SFT_DATA = "in_sft_data"
    TOOLS_NOT_NEEDED = "tools_not_needed"
    ALWAYS_SOLVED = "always_solved"
    NEVER_SOLVED = "never_solved"
    UNSCORED = "unscored"


class Rules(Frozen):
    """When a task is kept."""

    samples: int = Field(8, ge=1)
    """Number of attempts with tools."""
    no_tools_samples: int = Field(8, ge=0)
    """Number of attempts without tools; 0 does not test whether tools are needed."""
    max_without_tools: float = Field(0.3, ge=0, le=1)
    """A task that is solved without tools more often than this is dropped."""
    keep_unsolved: bool = False
    solved_at: float = 1.0
    """The score from which on an attempt counts as solved."""


@dataclass(frozen=True, slots=True)
class Rate:
    """How many attempts at one task were solved, failed and unscored."""

    solved: int = 0
    failed: int = 0
    unscored: int = 0

    @classmethod
    def of(cls, scores: Iterable[float | None], solved_at: float = 1.0) -> Rate:
        found = list(scores)
        solved = sum(score is not None and score >= solved_at for score in found)
        unscored = sum(score is None for score in found)
        return cls(solved, len(found) - solved - unscored, unscored)

    @property
    def scored(self) -> int:
        return self.solved + self.failed

    @property
    def attempts(self) -> int:
        return self.scored + self.unscored

    @property
    def share(self) -> float | None:
        return self.solved / self.scored if self.scored else None

    def __str__(self) -> str:
        rest = f", {self.unscored} unscored" if self.unscored else ""
        return f"{self.solved} of {self.scored}{rest}"

    def to_json(self) -> dict[str, JsonValue]:
        return {"solved": self.solved, "scored": self.scored, "unscored": self.unscored, "rate": self.share}


def fate(without: Rate, with_tools: Rate, rules: Rules) -> Fate | None:
    """Whether a task is kept, and why not; None as long as further attempts could decide it."""
    early = fate_without(without, rules)
    return fate_with(with_tools, rules) if early is Fate.KEPT else early


def fate_without(rate: Rate, rules: Rules) -> Fate | None:
    """`KEPT` where tools are needed."""
    total, most = rules.no_tools_samples, rules.max_without_tools
    if not total:
        return Fate.KEPT
    if _more(rate.solved, most, total):
        return Fate.TOOLS_NOT_NEEDED
    left = max(total - rate.attempts, 0)
    enough = 2 * rate.scored >= total
    if left:
        # Kept if it would be even with all remaining attempts solved.
        return Fate.KEPT if enough and not _more(rate.solved + left, most, rate.scored + left) else None
    if not enough:
        return Fate.UNSCORED
    return Fate.TOOLS_NOT_NEEDED if _more(rate.solved, most, rate.scored) else Fate.KEPT


def fate_with(rate: Rate, rules: Rules) -> Fate | None:
    if rate.failed and (rate.solved or rules.keep_unsolved):
        return Fate.KEPT
    if rate.attempts < rules.samples:
        return None
    if 2 * rate.scored < rules.samples:
        return Fate.UNSCORED
    return Fate.NEVER_SOLVED if rate.failed else Fate.ALWAYS_SOLVED


def histogram(rates: Iterable[Rate], samples: int) -> list[int]:
    """How many tasks were solved 0, 1, ... `samples` times of `samples`; where fewer were scored, the nearest share."""
    counts = [0] * (samples + 1)
    for rate in rates:
        if rate.share is not None:
            counts[int(rate.share * samples + 0.5)] += 1
    return counts


def _more(solved: int, share: float, of: int) -> bool:
    """Whether `solved` is more than that share; 3 of 10 is not more than 0.3, in spite of binary fractions."""
    return solved > share * of + 1e-9
