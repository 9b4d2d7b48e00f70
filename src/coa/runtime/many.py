"""Thousands of runs at a time: bounded, resumable, each with its deadline, watched."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from coa.folder import lock_file
from coa.models.base import Model, Sampling
from coa.models.price import Price
from coa.runtime.best_of import agrees
from coa.runtime.budget import refuse_unpriced
from coa.runtime.chain import Chain
from coa.runtime.guide import Constrain, constrained
from coa.tools import Tool, being_cancelled
from coa.trajectory import (
    Failure,
    FailureSite,
    JsonlWriter,
    Limits,
    Message,
    Profile,
    Stop,
    Task,
    Trajectory,
    Usage,
    load_profile,
    read,
)
from coa.trajectory.store import set_aside

log = logging.getLogger(__name__)


class Outcome(NamedTuple):
    """What is remembered of a run that a file holds."""

    answered: bool
    failed: bool
    right: bool | None

    @classmethod
    def of(cls, trajectory: Trajectory) -> Outcome:
        return cls(trajectory.answer is not None, trajectory.stop is Stop.FAILED, agrees(trajectory))


@dataclass
class Progress:
    """Where a batch of runs stands."""

    finished: int = 0
    resumed: int = 0
    """Found done in the file."""
    answered: int = 0
    failed: int = 0
    graded: int = 0
    """Tasks that have an accepted answer to be compared with."""
    right: int = 0
    """Those of them that gave it. This and the three before count what was run now and what was found done."""
    total: int | None = None
    """Runs to be had in the end, those found done included; None where nobody counted."""
    usage: Usage = field(default_factory=Usage)
    """Of what was run now."""
    started: float = field(default_factory=time.monotonic)
    running: dict[tuple[str, int], tuple[float, Chain]] = field(default_factory=dict)

    @property
    def tokens_per_second(self) -> float:
        return self.usage.completion_tokens / max(time.monotonic() - self.started, 1e-9)

    @property
    def done(self) -> int:
        return self.finished + self.resumed

    @property
    def seconds_left(self) -> float | None:
        """At the pace so far; None before there is one."""
        if self.total is None or not self.finished:
            return None
        return (self.total - self.done) * (time.monotonic() - self.started) / self.finished

    def add(self, trajectory: Trajectory) -> None:
        self.finished += 1
        self.usage = self.usage + trajectory.usage
        self._count(Outcome.of(trajectory))

    def found(self, outcome: Outcome) -> None:
        self.resumed += 1
        self._count(outcome)

    def _count(self, outcome: Outcome) -> None:
        self.answered += outcome.answered
        self.failed += outcome.failed
        self.graded += outcome.right is not None
        self.right += outcome.right is True

    def stuck(self, seconds: float) -> list[str]:
        """Runs that have taken longer than that, the longest first, and what each of them waits for."""
        return list(self._slow(seconds).values())

    def _slow(self, seconds: float) -> dict[tuple[str, int], str]:
        now = time.monotonic()
        return {
            (task, sample): f"task {task} (sample {sample}): {now - since:.0f} s, {chain.doing}"
            for (task, sample), (since, chain) in sorted(self.running.items(), key=lambda item: item[1][0])
            if now - since > seconds
        }


async def run_many(
    tasks: Iterable[Task],
    model: Model,
    tools: Mapping[str, Tool] | None = None,
    profile: Profile | str = "web",
    *,
    samples: int | Sequence[int] = 1,
    concurrency: int = 64,
    out: str | Path | None = None,
    sampling: Sampling | None = None,
    limits: Limits | None = None,
    prompt: Callable[[Task], Sequence[Message] | None] | None = None,
    price: Price | None = None,
    progress: Progress | None = None,
    retry_failed: bool = False,
    watch_s: float = 300.0,
    constrain: Constrain | str = Constrain.AUTO,
    score: Callable[[Trajectory], Awaitable[Trajectory]] | None = None,
) -> AsyncGenerator[Trajectory, None]:
    """Trajectories as they finish, `samples` for each task, or those of these numbers.

    With `out`, each is appended to that file, and what the file holds already is not run again. The file is locked
    until the generator ends or is closed, because a second process would pay for every run again. `retry_failed` first
    moves the failed and interrupted runs of the file to `<out>.aside`, so that they are. `score` is asked before a run
    is kept; one that is stopped while it is asked is kept as it was.
    """
    refuse_unpriced(limits or (load_profile(profile) if isinstance(profile, str) else profile).limits, price)
    progress = progress or Progress()
    constrained(model, Constrain(constrain))  # a model that cannot is told once, not in every run
    numbers = range(samples) if isinstance(samples, int) else samples
    listed = retry_failed and isinstance(tasks, Sequence)
    asked = {(task.id, number) for task in tasks for number in numbers} if listed else None
    held = ExitStack()
    writer, done = held.enter_context(_file(out, retry_failed, asked)) if out is not None else (None, {})
    jobs = _jobs(tasks, numbers, done, progress)
    results: asyncio.Queue[Trajectory | BaseException | None] = asyncio.Queue(maxsize=2 * concurrency)

    closing = False
    unscored: list[Trajectory] = []

    async def attempt(task: Task, number: int) -> Trajectory:
        chain = Chain(
            task,
            model,
            tools,
            task.profile or profile,
            sampling=_seeded(sampling, number),
            limits=limits,
            prompt=prompt(task) if prompt else None,
            price=price,
            sample=number,
            constrain=constrain,
        )
        progress.running[task.id, number] = (time.monotonic(), chain)
        return await chain.run()

    async def work() -> None:
        for task, number in jobs:  # a plain iterator shared by the workers: each job is taken by one of them
            if closing:
                return
            try:
                result = await attempt(task, number)
            except (Exception, asyncio.CancelledError) as error:
                if being_cancelled():
                    raise
                # A row that cannot be run, or a defect of ours, must not take its siblings down: it is kept as data.
                log.warning("task %s: %s: %s", task.id, type(error).__name__, error)
                result = _broken(task, number, profile, error)
            finally:
                progress.running.pop((task.id, number), None)
            if score is not None:
                try:
                    result = await score(result)
                except BaseException:
                    unscored.append(result)
                    raise
            await results.put(result)

    async def work_all() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(concurrency):
                    group.create_task(work())
        except BaseExceptionGroup as errors:
            await results.put(errors.exceptions[0])
        else:
            await results.put(None)

    workers = asyncio.create_task(work_all())
    watchdog = asyncio.create_task(_watch(progress, watch_s))
    try:
        while (result := await results.get()) is not None:
            if isinstance(result, BaseException):
                raise result
            progress.add(result)
            if writer is not None:
                writer.write(result)
            yield result
    finally:
        closing = True
        watchdog.cancel()
        workers.cancel()
        await asyncio.gather(workers, watchdog, return_exceptions=True)
        if writer is not None:
            with held:
                while not results.empty():  # finished, but nobody waited for it any more
                    if isinstance(result := results.get_nowait(), Trajectory):
                        writer.write(result)
                for result in unscored:
                    writer.write(result)


@contextmanager
def _file(
    out: str | Path, retry_failed: bool, asked: set[tuple[str, int]] | None
) -> Iterator[tuple[JsonlWriter, dict[tuple[str, int], Outcome]]]:
    """The file to append to, for this process alone, and what it holds already."""
    with lock_file(out):
        if retry_failed:
            set_aside(out, (Stop.FAILED, Stop.INTERRUPTED), asked)
        with JsonlWriter(out) as writer:
            yield writer, {trajectory.key: Outcome.of(trajectory) for trajectory in read(out)}


def _jobs(
    tasks: Iterable[Task], numbers: Sequence[int], done: Mapping[tuple[str, int], Outcome], progress: Progress
) -> Iterator[tuple[Task, int]]:
    for task in tasks:
        for number in numbers:
            outcome = done.get((task.id, number))
            if outcome is None:
                yield task, number
            else:
                progress.found(outcome)


def _broken(task: Task, number: int, profile: Profile | str, error: BaseException) -> Trajectory:
    name = task.profile or (profile if isinstance(profile, str) else profile.name)
    failure = Failure(site=FailureSite.RUNTIME, message=f"{type(error).__name__}: {error}")
    return Trajectory(task=task, profile=name, stop=Stop.FAILED, failure=failure, sample=number)


def _seeded(sampling: Sampling | None, number: int) -> Sampling | None:
    """Another seed for each sample; the same one would give the same run again."""
    if sampling is None or sampling.seed is None:
        return sampling
    return Sampling(sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_tokens, sampling.seed + number)


async def _watch(progress: Progress, seconds: float) -> None:
    told: set[tuple[str, int]] = set()
    while True:
        await asyncio.sleep(seconds / 10)
        for key, line in progress._slow(seconds).items():
            if key not in told:
                told.add(key)
                log.warning("slow: %s", line)
