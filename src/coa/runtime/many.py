"""Thousands of runs at a time: bounded, resumable, each with its deadline, watched."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

from coa.errors import FolderError
from coa.folder import lock_file
from coa.models.base import CountsTokens, Model, Sampling
from coa.progress import Progress, time_left
from coa.report import plural
from coa.runtime.budget import refuse_unpriced
from coa.runtime.chain import Chain
from coa.runtime.constrained import constrained
from coa.runtime.garbage import rare_collections
from coa.runtime.live import live_feed
from coa.runtime.setting import FleetLost, Setting
from coa.runtime.telemetry import unheard
from coa.scoring.answers import final
from coa.scoring.exact import normalise
from coa.shard import Shard, in_shard
from coa.tools import being_cancelled
from coa.trajectory import (
    CUT_SHORT,
    Failure,
    FailureSite,
    JsonlWriter,
    Profile,
    Stop,
    Task,
    Trajectory,
    Usage,
    read,
)
from coa.trajectory.store import set_aside, to_append

log = logging.getLogger(__name__)
_REPORT_S: Final = 0.5
_LONG: Final = 10_000
"""Characters from which on an answer is no other writing of an accepted one that is less than half as long."""
_SLOW_S: Final = 60.0
"""From when on a run is reported as slow."""


def normal_answer(answer: str | None) -> str:
    """The form in which answers are compared and voted on."""
    return normalise(final(answer or ""))


def agrees(trajectory: Trajectory) -> bool | None:
    """Whether the answer is an accepted one, by normalised text; None for a task that has none to compare with.

    Enough to watch a batch by. Grading proper (numbers, programs, judges) is the scorers' business.
    """
    if not trajectory.task.answer:
        return None
    answer, longest = final(trajectory.answer or ""), max(map(len, trajectory.task.answer))
    if len(answer) > max(_LONG, 2 * longest):
        return False  # normalising it would take seconds
    return normalise(answer) in {normalise(accepted) for accepted in trajectory.task.answer}


class Outcome(NamedTuple):
    """What is remembered of a run that a file holds."""

    answered: bool
    failed: bool
    right: bool | None

    @classmethod
    def of(cls, trajectory: Trajectory) -> Outcome:
        return cls(trajectory.answer is not None, trajectory.stop is Stop.FAILED, agrees(trajectory))


@dataclass
class BatchProgress:
    """Counts of a batch of runs while it is running. Pass one to `run_many` as `progress` and read it at any time."""

    finished: int = 0
    resumed: int = 0
    """Runs that the file already held."""
    answered: int = 0
    failed: int = 0
    graded: int = 0
    """Tasks that have an accepted answer to be compared with."""
    right: int = 0
    """Runs that gave an accepted answer. Like `answered`, `failed` and `graded`, it includes the runs of the file."""
    total: int | None = None
    """Number of runs at the end, including those of the file; None if the tasks were not counted."""
    usage: Usage = field(default_factory=Usage)
    """Usage of the runs that ended in this call."""
    started: float = field(default_factory=time.monotonic)
    running: dict[tuple[str, int], tuple[float, Chain]] = field(default_factory=dict)
    """Runs that have begun and are not in the counts yet, with the time at which they began."""
    interrupted: list[Trajectory] = field(default_factory=list)
    """Runs that had not ended when the batch was cancelled, as far as they came. They are in no file."""
    _model: Model | None = None
    _written_before: int = 0

    def begin(self, model: Model) -> None:
        """Start to measure the time and the tokens that this model writes."""
        self.started, self._model = time.monotonic(), model
        self._written_before = model.tokens_written if isinstance(model, CountsTokens) else 0

    @property
    def tokens_written(self) -> int:
        """Tokens that the model has written in this call, including those of unfinished runs.

        If the model does not count while it writes, calls that have not ended are not included.
        """
        running = sum(chain.usage.completion_tokens for _, chain in self.running.values())
        counted = self._model.tokens_written - self._written_before if isinstance(self._model, CountsTokens) else 0
        return max(self.usage.completion_tokens + running, counted)

    @property
    def model_calls(self) -> int:
        """Model calls that have ended, including those of unfinished runs."""
        return self.usage.model_calls + sum(chain.usage.model_calls for _, chain in self.running.values())

    @property
    def tool_calls(self) -> int:
        """Tool calls that were made, including those of unfinished runs."""
        return self.usage.tool_calls + sum(chain.usage.tool_calls for _, chain in self.running.values())

    @property
    def tokens_per_second(self) -> float:
        return self.tokens_written / max(time.monotonic() - self.started, 1e-9)

    @property
    def done(self) -> int:
        return self.finished + self.resumed

    @property
    def seconds_left(self) -> float | None:
        """Estimate from the pace so far; None before the first run has ended."""
        if self.total is None or not self.finished:
            return None
        return (self.total - self.done) * (time.monotonic() - self.started) / self.finished

    def add(self, trajectory: Trajectory) -> None:
        self.finished += 1
        self.running.pop(trajectory.key, None)  # only now, so that no token is missing from the counts in between
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

    def status(self) -> str:
        """One line: success, failures, tokens, calls, speed, cost, time left, and the run that takes longest."""
        parts = [f"{self.answered} answered"]
        if self.graded:
            parts = [f"{self.right} of {self.graded} right ({self.right / self.graded:.1%})"]
        if self.resumed:
            parts.insert(0, f"{self.resumed} from before")
        if self.failed:
            parts.append(f"{self.failed} failed")
        if self.running:
            parts.append(f"{len(self.running)} running")
        parts.append(plural(self.tokens_written, "token"))
        parts.append(f"{plural(self.model_calls, 'model call')} and {plural(self.tool_calls, 'tool call')}")
        parts.append(f"{self.tokens_per_second:.0f} tokens/s")
        if self.usage.cost is not None:
            parts.append(f"cost {self.usage.cost:.4g}")
        if left := time_left(self.seconds_left):
            parts.append(left)
        if slow := self.stuck(_SLOW_S):
            parts.append(f"slow: {slow[0]}" + (f" and {len(slow) - 1} more" if len(slow) > 1 else ""))
        return ", ".join(parts)

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


@asynccontextmanager
async def reported(batch: BatchProgress, progress: Progress, title: str) -> AsyncIterator[None]:
    """Reports where the batch stands while the block runs, and once more at its end."""
    progress.start(title, batch.total)

    async def follow() -> None:
        while True:
            progress.update(batch.done, batch.total, batch.status())
            await asyncio.sleep(_REPORT_S)

    following = asyncio.create_task(follow())
    try:
        yield
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        progress.update(batch.done, batch.total, batch.status())
        progress.finish()


async def run_many(
    tasks: Iterable[Task],
    setting: Setting,
    *,
    samples: int | Sequence[int] = 1,
    out: str | Path | None = None,
    shard: Shard | None = None,
    progress: BatchProgress | Progress | None = None,
    retry_failed: bool = False,
    watch_s: float = 300.0,
    score: Callable[[Trajectory], Awaitable[Trajectory]] | None = None,
) -> AsyncGenerator[Trajectory, None]:
    """Run many tasks concurrently, and yield each run when it ends.

    With `out`, each run is appended to a file, which is locked until the generator ends or is closed. Runs that the
    file already holds are neither repeated nor yielded; `coa.read` reads them all. Other processes can follow the
    running chains there (`coa view`).

    Args:
        tasks: The tasks. They are read as they are needed.
        setting: The model, tools and limits, from `open_setting`. `setting.concurrency` limits the runs at a time.
        samples: Number of attempts at each task, or the numbers of the attempts to make.
        out: A folder or a .jsonl file.
        shard: Run only this part of the tasks. An `out` that holds runs of other parts is refused.
        progress: Is informed of the state of the batch. A `BatchProgress` has the counts as numbers.
        retry_failed: Move failed and interrupted runs from the file to `<out>.aside` first, and run them again.
        watch_s: A warning names each run that takes longer than this many seconds.
        score: Is called with each run before it is kept. A run that is stopped meanwhile is kept without a score.

    Yields:
        The runs, in the order in which they end. Failed runs are yielded too.

    Raises:
        CoaError: `out` cannot be written, belongs to another run, or is in use by another process.
    """
    if shard is not None:
        tasks = in_shard(tasks, shard)
    if not isinstance(progress, BatchProgress | None):
        attempts = samples if isinstance(samples, int) else len(samples)
        batch = BatchProgress(total=len(tasks) * attempts if isinstance(tasks, Sequence) else None)
        runs = run_many(
            tasks, setting, samples=samples, out=out, shard=shard, progress=batch, retry_failed=retry_failed,
            watch_s=watch_s, score=score,
        )  # fmt: skip
        async with reported(batch, progress, "runs"), aclosing(runs) as made:
            async for trajectory in made:
                yield trajectory
        return
    refuse_unpriced(setting.limits or setting.profile.limits, setting.price)
    progress = progress or BatchProgress()
    constrained(setting.model, setting.constrain)  # a model that cannot be is refused once, not in every run
    concurrency = setting.concurrency
    numbers = range(samples) if isinstance(samples, int) else samples
    listed = retry_failed and isinstance(tasks, Sequence)
    asked = {(task.id, number) for task in tasks for number in numbers} if listed else None
    held = ExitStack()
    writer, done = (
        held.enter_context(_file(to_append(out), retry_failed, asked, shard)) if out is not None else (None, {})
    )
    if setting.live is None and out is not None:
        setting = replace(setting, live=held.enter_context(live_feed(to_append(out).parent)))
    jobs = _jobs(tasks, numbers, done, progress)
    progress.begin(setting.model)
    results: asyncio.Queue[Trajectory | BaseException | None] = asyncio.Queue(maxsize=2 * concurrency)

    closing = False
    unscored: list[Trajectory] = []

    async def attempt(task: Task, number: int) -> Trajectory:
        own = replace(setting, sampling=_seeded(setting.sampling, number), finished=unheard)  # it may be scored first
        chain = Chain(task, own, sample=number)
        progress.running[task.id, number] = (time.monotonic(), chain)
        if own.fleet is not None:
            chain.doing = "in another process"
            return await own.fleet.run(task, number, own)
        return await chain.run()

    async def work() -> None:
        for task, number in jobs:  # a plain iterator shared by the workers: each job is taken by one of them
            if closing:
                return
            try:
                result = await attempt(task, number)
            except (Exception, asyncio.CancelledError) as error:
                if isinstance(error, FleetLost):
                    raise
                if being_cancelled():
                    if entry := progress.running.get((task.id, number)):
                        progress.interrupted.append(entry[1].trajectory())
                    raise
                # A row that cannot be run, or a defect of ours, must not take its siblings down: it is kept as data.
                log.warning("task %s: %s: %s", task.id, type(error).__name__, error)
                result = _broken(task, number, setting.profile, error)
            if score is not None:
                try:
                    result = await score(result)
                except BaseException:
                    unscored.append(result)
                    setting.finished(result)
                    raise
            setting.finished(result)
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

    with rare_collections():
        workers = asyncio.create_task(work_all())
        watchdog = asyncio.create_task(_watch(progress, watch_s))
        try:
            while (result := await results.get()) is not None:
                if isinstance(result, BaseException):
                    raise result
                entry = progress.running.get(result.key)
                progress.add(result)
                if writer is not None:
                    writer.write(result)
                if entry is not None:
                    entry[1].leave_feed()
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
    out: Path, retry_failed: bool, asked: set[tuple[str, int]] | None, shard: Shard | None
) -> Iterator[tuple[JsonlWriter, dict[tuple[str, int], Outcome]]]:
    """The file to append to, for this process alone, and what it holds already."""
    with lock_file(out):
        if shard is not None:
            refuse_other_shards(out, shard)
        if retry_failed:
            set_aside(out, CUT_SHORT, asked)
        with JsonlWriter(out) as writer:
            yield writer, {trajectory.key: Outcome.of(trajectory) for trajectory in read(out)}


def refuse_other_shards(file: Path, shard: Shard) -> None:
    """Refuse a file that holds runs of other tasks than the shard's: it is another machine's, or of a whole run."""
    runs = read(file) if file.is_file() else ()
    if other := next((run.task.id for run in runs if not shard.holds(run.task.id)), None):
        problem = f"{file} holds runs that are not of the shard {shard}; the first is of task {other!r}"
        raise FolderError(problem, hint="give each shard a separate --out")


def _jobs(
    tasks: Iterable[Task], numbers: Sequence[int], done: Mapping[tuple[str, int], Outcome], progress: BatchProgress
) -> Iterator[tuple[Task, int]]:
    for task in tasks:
        for number in numbers:
            outcome = done.get((task.id, number))
            if outcome is None:
                yield task, number
            else:
                progress.found(outcome)


def _broken(task: Task, number: int, profile: Profile, error: BaseException) -> Trajectory:
    name, key = (task.profile, None) if task.profile else (profile.name, profile.hash)
    failure = Failure(site=FailureSite.RUNTIME, message=f"{type(error).__name__}: {error}")
    return Trajectory(task=task, profile=name, profile_hash=key, stop=Stop.FAILED, failure=failure, sample=number)


def _seeded(sampling: Sampling, number: int) -> Sampling:
    """Another seed for each sample; the same one would give the same run again."""
    return sampling if sampling.seed is None else replace(sampling, seed=sampling.seed + number)


async def _watch(progress: BatchProgress, seconds: float) -> None:
    reported_slow: set[tuple[str, int]] = set()
    while True:
        await asyncio.sleep(seconds / 10)
        for key, line in progress._slow(seconds).items():
            if key not in reported_slow:
                reported_slow.add(key)
                log.warning("slow: %s", line)
