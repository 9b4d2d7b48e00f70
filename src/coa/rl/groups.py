"""Groups of attempts at one task, and dynamic sampling: sample tasks until enough groups have different rewards.

The search is bounded by `max_num_gen_batches`. Groups found beyond `train_batch_size` are kept for the next steps, but
not for long: the older a group is, the less it says about the current policy.
"""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic

from typing_extensions import TypeVar

from coa.rl.algorithms import advantage_estimator
from coa.rl.algorithms.base import has_contrast
from coa.rl.config import RlConfig
from coa.rl.reward import COUNTED, REWARD, SUCCESS
from coa.trajectory import Sample, Task, Trajectory, writer
from coa.trajectory.types import FrozenDict


@dataclass(frozen=True)
class Attempt(ABC):
    """A trajectory with its reward, as reports and dynamic sampling see it."""

    trajectory: Trajectory
    reward: float
    """After overlong shaping, and minus the KL term where that is part of the reward."""

    @property
    def success(self) -> float | None:
        return self.trajectory.scores[SUCCESS].value

    @property
    def counted(self) -> float:
        """The score without small terms and shaping."""
        value = self.trajectory.scores[COUNTED].value
        assert value is not None, self.trajectory.key
        return value

    @property
    @abstractmethod
    def model_tokens(self) -> int:
        """Number of tokens that the model wrote."""

    @property
    @abstractmethod
    def logprob_sum(self) -> float:
        """Sum of their log-probabilities."""


@dataclass(frozen=True)
class RewardedAttempt(Attempt):
    """An attempt that can be learnt from."""

    sample: Sample
    """With the log-probabilities from sampling."""

    @property
    def model_tokens(self) -> int:
        return self.sample.trained

    @property
    def logprob_sum(self) -> float:
        return sum(self.sample.logprobs or ())


AttemptT = TypeVar("AttemptT", bound=Attempt, default=RewardedAttempt, covariant=True)


@dataclass(frozen=True)
class Group(Generic[AttemptT]):
    task: Task
    attempts: tuple[AttemptT, ...]
    """Only those that ended and have a reward."""
    step: int
    """The step in which it was sampled."""
    failed: int = 0
    """Number of attempts that failed, after all retries."""
    unscored: int = 0
    """Number of attempts that could not be scored."""
    refilled: int = 0
    """Number of attempts that replaced failed ones."""
    why: str = ""
    """Why one of the missing attempts is missing."""

    @property
    def rewards(self) -> list[float]:
        return [attempt.reward for attempt in self.attempts]

    def teaches(self, config: RlConfig) -> bool:
        """Whether its attempts differ in what `filter_groups_metric` names, and have advantages other than zero."""
        counted = [attempt.counted for attempt in self.attempts]
        return has_contrast(self.rewards) and (config.contrast_in == "reward" or has_contrast(counted))


def advantages_of(group: Group, config: RlConfig) -> list[list[float]]:
    """For each attempt, an advantage for each token that the model wrote."""
    return advantage_estimator(config.advantage_estimator)(group.attempts, config)


@dataclass(frozen=True)
class Collected(Generic[AttemptT]):
    used: list[Group[AttemptT]]
    """Groups to learn from now."""
    surplus: list[Group[AttemptT]]
    """Groups for the next steps."""
    drawn: list[Group[AttemptT]]
    """All groups that were sampled in this step."""
    gen_batches: int
    """How many times tasks were sampled."""
    stale: int = 0
    """Number of surplus groups that were dropped because they were too old."""


async def collect(
    draw: Callable[[], list[Task]],
    attempt: Callable[[list[Task], int], Awaitable[list[Group]]],
    surplus: Sequence[Group],
    config: RlConfig,
    step: int,
) -> Collected:
    """The groups of a step. Surplus groups of earlier steps are used first.

    `attempt` gets tasks and how many times tasks were sampled before in this step.
    """
    ready = [group for group in surplus if step - group.step <= config.max_staleness]
    stale, drawn, gen_batches = len(surplus) - len(ready), list[Group](), 0
    while gen_batches < config.max_num_gen_batches and len(ready) < config.groups_needed:
        groups = await attempt(draw(), gen_batches)
        gen_batches += 1
        drawn += groups
        if not config.dynamic_sampling:
            ready += [group for group in groups if group.attempts]
            break
        # With equal rewards all advantages are zero: such a group would cost a backward pass for nothing. Where only
        # small terms differ, dividing by their deviation would make them as important as being right or wrong.
        ready += [group for group in groups if group.teaches(config)]
    return Collected(ready[: config.train_batch_size], ready[config.train_batch_size :], drawn, gen_batches, stale)


def keep(
    groups: Iterable[Group[AttemptT]],
    path: Path,
    advantages: Callable[[Group[AttemptT]], Sequence[float]],
    *,
    used: Sequence[Group[AttemptT]],
) -> None:
    """Write groups as trajectories with step, reward and advantage, for `coa inspect` and for resuming.

    `advantages` gives the advantage of each attempt of a group.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    learnt = {id(group) for group in used}
    with writer(path) as out:
        for number, group in enumerate(groups):
            for attempt, advantage in zip(group.attempts, advantages(group), strict=True):
                record = {
                    "step": group.step,
                    "group": number,
                    "reward": attempt.reward,
                    "advantage": advantage,
                    "learnt": id(group) in learnt,
                }
                meta = FrozenDict({**attempt.trajectory.meta, "rl": record})
                shaped = attempt.trajectory.scored(REWARD, attempt.reward, attempt.trajectory.scores[REWARD].reason)
                out.write(shaped.scored("advantage", advantage).model_copy(update={"meta": meta}))


def mean_advantages(group: Group, config: RlConfig) -> list[float]:
    """For each attempt, the mean of its tokens' advantages; exactly their number where all are the same."""
    return [_mean(found) for found in advantages_of(group, config)]


def _mean(advantages: Sequence[float]) -> float:
    same = not advantages or min(advantages) == max(advantages)
    return (advantages[0] if advantages else 0.0) if same else statistics.fmean(advantages)
