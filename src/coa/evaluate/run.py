"""The evaluation of one benchmark: make the runs that are missing, score those that are unscored, and choose.

Whatever ends it (Ctrl-C, a kill, a full disk), the same call goes on from what the folder holds and ends with the same
report. A failed run is repeated only on request (`retry_failed`); otherwise it stays failed and is counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from coa.benchmarks.data import Loaded
from coa.choices import Select
from coa.errors import ModelError
from coa.evaluate.attempts import Attempt, attempt_of, by_task
from coa.evaluate.folder import Folder, Journal, settle
from coa.evaluate.summary import chosen
from coa.models.base import Model
from coa.runtime import BatchProgress, Setting, run_many
from coa.runtime.best_of import judged
from coa.runtime.many import Outcome
from coa.runtime.telemetry import unheard
from coa.scoring import Scorer, score_trajectory
from coa.trajectory import CUT_SHORT, Trajectory, read
from coa.trajectory.store import set_aside


@dataclass(frozen=True, slots=True)
class Plan:
    """What is evaluated, and how answers are judged."""

    loaded: Loaded
    samples: int
    scorers: Sequence[Scorer]
    """The first decides; the others only show how far they agree with it."""
    select: Select | None = None
    """How one of the samples is chosen; None counts all of them."""
    judge: Model | None = None
    """The model that chooses, if a judge does."""
    retry_failed: bool = False
    scoring_at_once: int = 32

    @property
    def scorer(self) -> str:
        return self.scorers[0].name


@dataclass
class EvalProgress(BatchProgress):
    """Progress with the verdicts of the scorers instead of a comparison of texts."""

    unscored: int = 0

    def _count(self, outcome: Outcome) -> None:
        self.answered += outcome.answered
        self.failed += outcome.failed

    def scored(self, attempt: Attempt) -> None:
        self.graded += 1
        self.right += attempt.right
        self.unscored += attempt.unscored


@dataclass
class Scoring:
    """Scores runs in the background, at most `most` at a time. The end of the block waits for all, or cancels them."""

    most: int
    waiting: set[asyncio.Task[None]] = field(default_factory=set)

    async def add(self, work: Awaitable[None]) -> None:
        if len(self.waiting) >= self.most:
            await self._next()
        self.waiting.add(asyncio.ensure_future(work))

    async def _next(self) -> None:
        done, self.waiting = await asyncio.wait(self.waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, failed: object, *_: object) -> None:
        try:
            while self.waiting and failed is None:
                await self._next()
        finally:
            for task in self.waiting:
                task.cancel()
            await asyncio.gather(*self.waiting, return_exceptions=True)


async def evaluate_benchmark(plan: Plan, setting: Setting, folder: Folder, progress: EvalProgress) -> list[Attempt]:
    """All attempts at the plan's tasks, scored and chosen from, with everything in the folder but the report."""
    settle(folder)
    wanted = {(task.id, sample) for task in plan.loaded.tasks for sample in range(plan.samples)}
    if plan.retry_failed and folder.trajectories.is_file():
        set_aside(folder.trajectories, CUT_SHORT, wanted)
    progress.total = len(wanted)
    journal = Journal(folder)
    attempts: list[Attempt] = []

    async def score(trajectory: Trajectory) -> None:
        done = await _scored(trajectory, plan.scorers)
        journal.score(done.key, {scorer.name: done.scores[scorer.name] for scorer in plan.scorers})
        setting.finished(done)
        add(done)

    def add(done: Trajectory) -> None:
        attempt = attempt_of(done, plan.scorer)
        attempts.append(attempt)
        progress.scored(attempt)

    try:
        async with Scoring(plan.scoring_at_once) as work:
            if folder.trajectories.is_file():
                for trajectory in read(folder.trajectories):
                    if trajectory.key not in wanted:
                        continue
                    if all(scorer.name in trajectory.scores for scorer in plan.scorers):
                        add(trajectory)
                    else:
                        await work.add(score(trajectory))
            unscored = replace(setting, finished=unheard)  # it hears of runs when they are scored
            runs = run_many(
                plan.loaded.tasks, unscored, samples=plan.samples, progress=progress, out=folder.trajectories
            )
            try:
                async for trajectory in runs:
                    await work.add(score(trajectory))
            finally:
                await runs.aclose()
        if plan.select is not None:
            attempts = await _choose(plan, attempts, journal)
    finally:
        journal.close()
    settle(folder)
    return attempts


async def _scored(trajectory: Trajectory, scorers: Sequence[Scorer]) -> Trajectory:
    for scorer in scorers:
        if scorer.name not in trajectory.scores:
            trajectory = await score_trajectory(trajectory, scorer)
    return trajectory


async def _choose(plan: Plan, attempts: list[Attempt], journal: Journal) -> list[Attempt]:
    """Mark one attempt at each task that has an answer; one chosen among the same answers stays chosen."""
    assert plan.select is not None
    questions = {task.id: task.question_in_context for task in plan.loaded.tasks}
    picked: dict[tuple[str, int], int] = {}
    how = plan.select

    async def one(task: str, candidates: Sequence[Attempt]) -> None:
        among = sum(attempt.answered for attempt in candidates)
        before = next((attempt for attempt in candidates if attempt.selected and attempt.selected_among == among), None)
        choice = before or await _choice(candidates, how, questions[task], plan.judge)
        if choice is not None:
            picked[choice.key] = among
            if before is None:
                journal.choose(choice.key, how.value, among)

    async with Scoring(plan.scoring_at_once) as work:
        for task, candidates in by_task(attempts).items():
            await work.add(one(task, candidates))
    return [
        replace(a, selected=how.value if a.key in picked else None, selected_among=picked.get(a.key, 0))
        for a in attempts
    ]


async def _choice(candidates: Sequence[Attempt], how: Select, question: str, judge: Model | None) -> Attempt | None:
    """A judge that fails leaves the choice to the majority, as in `coa run`."""
    answered = [attempt for attempt in candidates if attempt.answered]
    if how is not Select.JUDGE:
        return chosen(candidates, how) or (answered[0] if answered else None)
    if len(answered) < 2:
        return answered[0] if answered else None
    if judge is None:
        raise ModelError("selecting by a judge needs a judge", hint="add --judge URL")
    try:
        return await judged(answered, question, judge)
    except ModelError:
        return chosen(candidates, Select.MAJORITY) or answered[0]
