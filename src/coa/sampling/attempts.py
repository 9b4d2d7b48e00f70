"""Attempts on disk with their scores: a file of trajectories to which each start appends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from coa.errors import StoreError
from coa.sampling.difficulty import Rate
from coa.scoring import Scorer, score_trajectory
from coa.trajectory import CUT_SHORT, Task, Trajectory, Usage, read
from coa.trajectory.store import set_aside
from coa.trajectory.types import FrozenDict

log = logging.getLogger(__name__)
SCORE: Final = "success"
SCORED_BY: Final = "scored_by"
_AT_ONCE: Final = 32


class Attempts:
    """The scores of a file's trajectories, by task and number. Unscored trajectories are scored again when read.

    `judged_by` names the scorer and its judge: scores that another one gave do not count.
    """

    def __init__(self, file: Path, scorer: Scorer, judged_by: str) -> None:
        self.file = file
        self.usage = Usage()
        self._scorer, self._judged_by = scorer, judged_by
        self._scores: dict[str, dict[int, float | None]] = {}

    def retry_failed(self) -> int:
        """Set failed runs aside, so that they are made again, and return their number."""
        return set_aside(self.file, CUT_SHORT)

    async def load(self, tasks: Mapping[str, Task]) -> None:
        """Read the attempts at these tasks from the file."""
        if not self.file.is_file():
            return
        waiting: list[Trajectory] = []
        for trajectory in read(self.file):
            task = tasks.get(trajectory.task.id)
            if task is None:
                continue
            if task.question_in_context != trajectory.task.question_in_context:
                hint = "use another --out, or give the tasks ids that do not change"
                raise StoreError(f"{self.file} holds attempts at another task under the id {task.id!r}", hint=hint)
            same = (task.answer, task.tests) == (trajectory.task.answer, trajectory.task.tests)
            if same and self._judged(trajectory):
                self.add(trajectory)
                continue
            waiting.append(trajectory.model_copy(update={"task": task}))
            if len(waiting) == _AT_ONCE:
                await self._score_all(waiting)
                waiting = []
        await self._score_all(waiting)

    async def score(self, trajectory: Trajectory) -> Trajectory:
        scored = await score_trajectory(trajectory, self._scorer, name=SCORE)
        return scored.model_copy(update={"meta": FrozenDict({**scored.meta, SCORED_BY: self._judged_by})})

    def add(self, trajectory: Trajectory) -> None:
        score = trajectory.scores.get(SCORE)
        self._scores.setdefault(trajectory.task.id, {})[trajectory.sample] = None if score is None else score.value
        self.usage = self.usage + trajectory.usage

    def rate(self, task: Task, samples: int, solved_at: float) -> Rate:
        """The rate over the first `samples` attempts, as far as they were made."""
        found = self._scores.get(task.id, {})
        return Rate.of((score for number, score in found.items() if number < samples), solved_at)

    def _judged(self, trajectory: Trajectory) -> bool:
        score = trajectory.scores.get(SCORE)
        return score is not None and score.value is not None and trajectory.meta.get(SCORED_BY) == self._judged_by

    async def _score_all(self, trajectories: list[Trajectory]) -> None:
        for trajectory in await asyncio.gather(*map(self.score, trajectories)):
            self.add(trajectory)
