"""Groups of attempts at one task, and dynamic sampling: draw until enough of them have a spread of rewards.

Bounded: what is not found in so many rounds is not there. What is found beyond need is kept for the next steps, not for
long: the older a group, the less it says of the policy as it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from coa.rl.advantage import group_advantages, has_contrast
from coa.rl.config import RlConfig
from coa.rl.reward import COUNTED, REWARD, SUCCESS
from coa.trajectory import Sample, Task, Trajectory, writer
from coa.trajectory.types import FrozenDict


@dataclass(frozen=True)
class Attempt:
    """A trajectory that can be learnt from."""

    trajectory: Trajectory
    sample: Sample
    """With the logprobs as sampled."""
    reward: float
    """After shaping."""

    @property
    def success(self) -> float | None:
        return self.trajectory.scores[SUCCESS].value

    @property
    def counted(self) -> float:
        """Before small terms and shaping."""
        value = self.trajectory.scores[COUNTED].value
        assert value is not None, self.trajectory.key
        return value


@dataclass(frozen=True)
class Group:
    task: Task
    attempts: tuple[Attempt, ...]
    """Only those that ended and have a reward."""
    step: int
    """In which it was sampled."""
    failed: int = 0
    """Attempts that broke, after all retries."""
    unscored: int = 0
    refilled: int = 0
    """Attempts that took the place of broken ones."""
    why: str = ""
    """Why one of those that are not here is not."""

    @property
    def rewards(self) -> list[float]:
        return [attempt.reward for attempt in self.attempts]

    def teaches(self, config: RlConfig) -> bool:
        """Whether it has the spread that is asked for, and an advantage to learn from."""
        counted = [attempt.counted for attempt in self.attempts]
        return has_contrast(self.rewards) and (config.spread == "reward" or has_contrast(counted))

    def advantages(self, config: RlConfig) -> list[float]:
        tokens = [attempt.sample.trained for attempt in self.attempts] if config.baseline == "token" else None
        return group_advantages(self.rewards, scaled=config.scale == "group", tokens=tokens)


@dataclass(frozen=True)
class Collected:
    used: list[Group]
    """To learn from now."""
    surplus: list[Group]
    """For the next steps."""
    drawn: list[Group]
    """All that were sampled in this step."""
    rounds: int
    too_old: int = 0
    """Groups of earlier steps that were dropped."""


async def collect(
    draw: Callable[[], list[Task]],
    attempt: Callable[[list[Task], int], Awaitable[list[Group]]],
    surplus: Sequence[Group],
    config: RlConfig,
    step: int,
) -> Collected:
    """`attempt` gets tasks and the number of the round. The surplus of the steps before is used first."""
    ready = [group for group in surplus if step - group.step <= config.max_age]
    too_old, drawn, rounds = len(surplus) - len(ready), list[Group](), 0
    while rounds < config.rounds and len(ready) < config.wanted:
        groups = await attempt(draw(), rounds)
        rounds += 1
        drawn += groups
        if not config.dynamic_sampling:
            ready += [group for group in groups if group.attempts]
            break
        # Equal rewards centre to zero: such a group would cost a backward pass and move nothing. Where only small terms
        # differ, dividing by their deviation would make them as large as the difference between right and wrong.
        ready += [group for group in groups if group.teaches(config)]
    return Collected(ready[: config.prompts], ready[config.prompts :], drawn, rounds, too_old)


def keep(groups: Iterable[Group], path: Path, config: RlConfig, *, used: Sequence[Group]) -> None:
    """As trajectories that tell step, reward and advantage, for `coa inspect` and for resuming."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    learnt = {id(group) for group in used}
    with writer(path) as out:
        for number, group in enumerate(groups):
            for attempt, advantage in zip(group.attempts, group.advantages(config), strict=True):
                told = {
                    "step": group.step,
                    "group": number,
                    "reward": attempt.reward,
                    "advantage": advantage,
                    "learnt": id(group) in learnt,
                }
                meta = FrozenDict({**attempt.trajectory.meta, "rl": told})
                shaped = attempt.trajectory.scored(REWARD, attempt.reward, attempt.trajectory.scores[REWARD].reason)
                out.write(shaped.scored("advantage", advantage).model_copy(update={"meta": meta}))
