"""Thousands of runs at a time: bounded, resumable, each with its deadline, watched."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coa.models.base import Model, Sampling
from coa.models.price import Price
from coa.runtime.chain import Chain
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
    read,
)

log = logging.getLogger(__name__)


@dataclass
class Progress:
    """Where a batch of runs stands."""

    finished: int = 0
    resumed: int = 0
    """Found done in the file."""
    answered: int = 0
    failed: int = 0
    usage: Usage = field(default_factory=Usage)
    started: float = field(default_factory=time.monotonic)
    running: dict[tuple[str, int], tuple[float, Chain]] = field(default_factory=dict)

    @property
    def tokens_per_second(self) -> float:
        return self.usage.completion_tokens / max(time.monotonic() - self.started, 1e-9)

    def stuck(self, seconds: float) -> list[str]:
        """Runs that have taken longer than that, and what each of them waits for."""
        now = time.monotonic()
        return [
            f"task {task} (sample {sample}): {now - since:.0f} s, {chain.doing}"
            for (task, sample), (since, chain) in self.running.items()
            if now - since > seconds
        ]


async def run_many(
    tasks: Iterable[Task],
    model: Model,
    tools: Mapping[str, Tool] | None = None,
    profile: Profile | str = "web",
    *,
    samples: int = 1,
    concurrency: int = 64,
    out: str | Path | None = None,
    sampling: Sampling | None = None,
    limits: Limits | None = None,
    prompt: Callable[[Task], Sequence[Message] | None] | None = None,
    price: Price | None = None,
    progress: Progress | None = None,
    watch_s: float = 300.0,
) -> AsyncIterator[Trajectory]:
    """Trajectories as they finish, `samples` for each task.

    With `out`, each is appended to that file, and what the file holds already is not run again.
    """
    progress = progress or Progress()
    writer = JsonlWriter(out) if out is not None else None
    done = _done(Path(out), progress) if out is not None else set()
    jobs = ((task, n) for task in tasks for n in range(samples) if (task.id, n) not in done)
    results: asyncio.Queue[Trajectory | BaseException | None] = asyncio.Queue(maxsize=2 * concurrency)

    closing = False

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
            progress.finished += 1
            progress.answered += result.answer is not None
            progress.failed += result.stop is Stop.FAILED
            progress.usage = progress.usage + result.usage
            if writer is not None:
                writer.write(result)
            yield result
    finally:
        closing = True
        watchdog.cancel()
        workers.cancel()
        await asyncio.gather(workers, watchdog, return_exceptions=True)
        if writer is not None:
            writer.close()


def _broken(task: Task, number: int, profile: Profile | str, error: BaseException) -> Trajectory:
    name = task.profile or (profile if isinstance(profile, str) else profile.name)
    failure = Failure(site=FailureSite.RUNTIME, message=f"{type(error).__name__}: {error}")
    return Trajectory(task=task, profile=name, stop=Stop.FAILED, failure=failure, sample=number)


def _done(path: Path, progress: Progress) -> set[tuple[str, int]]:
    done = {trajectory.key for trajectory in read(path)}
    progress.resumed = len(done)
    return done


def _seeded(sampling: Sampling | None, number: int) -> Sampling | None:
    """Another seed for each sample; the same one would give the same run again."""
    if sampling is None or sampling.seed is None:
        return sampling
    return Sampling(sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_tokens, sampling.seed + number)


async def _watch(progress: Progress, seconds: float) -> None:
    told: set[str] = set()
    while True:
        await asyncio.sleep(seconds / 10)
        for line in progress.stuck(seconds):
            name = line.split(":", 1)[0]
            if name not in told:
                told.add(name)
                log.warning("slow: %s", line)
