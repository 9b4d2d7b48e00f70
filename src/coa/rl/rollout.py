"""Rollouts: attempts at tasks, by the runtime and the engine that everything else uses. There is no second agent loop.

Attempts are sampled from the policy at `temperature`, without a grammar; `top_p` and `top_k` cut off unlikely tokens
where they are set. The log-probabilities in the trajectory are those of the whole distribution. An attempt that failed
is made again, then left out and counted; nothing is padded.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Final

from coa.choices import Constrain
from coa.models.base import Sampling
from coa.models.local import LocalModel
from coa.rl.config import RlConfig
from coa.rl.groups import Group, RewardedAttempt
from coa.rl.reward import REWARD, Rewards, cached_profile, shaped_reward
from coa.runtime import Setting, run_many
from coa.runtime.live import LiveFeed
from coa.runtime.telemetry import Heard, unheard
from coa.tools import Tool
from coa.trajectory import CUT_SHORT, Message, Task, Tokenizer, Trajectory, profile_of, to_sample

_SEEDS: Final = 1 << 12
"""Distance between the seeds of two groups, so that no two attempts have the same seed."""
Leave = Callable[[int], None]


@dataclass(frozen=True)
class Rollouts:
    model: LocalModel
    tokenizer: Tokenizer
    tools: Mapping[str, Tool]
    rewards: Rewards
    config: RlConfig
    exact: bool
    made: Callable[[], None] = lambda: None
    """Called when an attempt has ended."""
    live: LiveFeed | None = None
    finished: Heard = unheard
    """Called with each attempt that has ended, when it has its reward."""

    async def __call__(self, tasks: Sequence[Task], *, step: int, number: int, ahead: int = 0) -> list[Group]:
        """A group for each task. `number` is how many times tasks were sampled before in this step; `ahead` is how many
        steps before `step` the attempts are made."""
        config = self.config
        groups = await self._all([(task, config.num_generations) for task in tasks], f"{step}/{number}")
        refilled = [0] * len(tasks)
        for retry in range(1, config.max_retries + 1):
            broken = [config.num_generations - len(_ended(group)) for group in groups]
            again = [at for at, count in enumerate(broken) if count]
            if not again:
                break
            more = await self._all([(tasks[at], broken[at]) for at in again], f"{step}/{number}/{retry}")
            for at, found in zip(again, more, strict=True):
                refilled[at] += len(_ended(found))
                numbered = [t.model_copy(update={"sample": config.num_generations * retry + t.sample}) for t in found]
                groups[at] = [*groups[at], *numbered]
        return [self._group(*each, step - ahead) for each in zip(tasks, groups, refilled, strict=True)]

    async def _all(self, jobs: Sequence[tuple[Task, int]], name: str) -> list[list[Trajectory]]:
        names = (f"{self.config.seed}/{name}/{task.id}" for task, _ in jobs)
        seeds = [int.from_bytes(hashlib.sha256(name.encode()).digest()[:5]) * _SEEDS for name in names]
        runs = [seed + number for seed, (_, count) in zip(seeds, jobs, strict=True) for number in range(count)]
        with self.model.in_step(runs) if self.exact else nullcontext(lambda _: None) as leave:
            return await asyncio.gather(
                *(self._attempts(task, count, seed, leave) for seed, (task, count) in zip(seeds, jobs, strict=True))
            )

    async def _attempts(self, task: Task, count: int, seed: int, leave: Leave) -> list[Trajectory]:
        profile = cached_profile(task.profile or self.config.profile)
        cut = Sampling(1.0, self.config.top_p, self.config.top_k, self.config.max_turn_tokens, seed)
        judged = []
        setting = Setting(
            self.model,
            self.tools,
            profile,
            sampling=cut,
            limits=self.config.limits(profile),
            prompt=self.prompt,
            constrain=Constrain.NEVER,
            concurrency=count,
            live=self.live,
        )
        async for trajectory in run_many([task], setting, samples=count):
            leave(seed + trajectory.sample)
            self.made()
            judged.append(asyncio.create_task(self.rewards.of(trajectory, profile_of(trajectory))))
        attempts = sorted(await asyncio.gather(*judged), key=lambda trajectory: trajectory.sample)
        for attempt in attempts:
            self.finished(attempt)
        return attempts

    def prompt(self, task: Task) -> Sequence[Message] | None:
        return task.prompt if self.config.use_task_prompts else None

    def attempt(self, trajectory: Trajectory, reward: float | None = None) -> RewardedAttempt | None:
        """The trajectory as an attempt to learn from; None if nothing was sampled in it. `reward` is given if
        it was read from a checkpoint."""
        sample = to_sample(trajectory, self.tokenizer, profile_of(trajectory), ends=True)
        if sample.logprobs is None:
            return None
        if reward is None:
            reward = shaped_reward(trajectory, sample.trained, self.config)
        return RewardedAttempt(trajectory, reward, sample)

    def _group(self, task: Task, trajectories: Sequence[Trajectory], refilled: int, step: int) -> Group:
        ended = _ended(trajectories)
        scored = [trajectory for trajectory in ended if trajectory.scores[REWARD].value is not None]
        attempts = [attempt for trajectory in scored if (attempt := self.attempt(trajectory)) is not None]
        return Group(
            task=task,
            attempts=tuple(attempts),
            step=step,
            failed=max(self.config.num_generations - len(ended), 0) + len(scored) - len(attempts),
            unscored=len(ended) - len(scored),
            refilled=refilled,
            why=next(filter(None, map(_why_not, trajectories)), "")
            if len(attempts) < self.config.num_generations
            else "",
        )


def _why_not(trajectory: Trajectory) -> str:
    """Why a trajectory cannot be learnt from; empty for one that can."""
    if trajectory.failure is not None and not _ended([trajectory]):
        return trajectory.failure.message
    score = trajectory.scores[REWARD]
    return score.reason if score.value is None else ""


def _ended(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    return [t for t in trajectories if t.stop not in CUT_SHORT]
