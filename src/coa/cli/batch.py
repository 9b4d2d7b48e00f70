"""`coa run --tasks`: many runs from the shell, with progress and resuming."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coa.cli.display import spent
from coa.cli.output import echo, echo_json
from coa.cli.progress import terminal_progress
from coa.folder import lock_file
from coa.report import plural
from coa.runtime import AskConfig, BatchProgress, open_setting, run_many
from coa.runtime.many import refuse_other_shards, reported
from coa.runtime.on_ray import check_ray, on_ray
from coa.shard import in_shard
from coa.trajectory import JsonlWriter, Task
from coa.trajectory.store import Lines


@dataclass(frozen=True, slots=True)
class Batch:
    """What to run, how often, and where it goes."""

    tasks: Sequence[Task]
    samples: int
    out: Path | None
    retry_failed: bool
    as_json: bool


def run_batch(batch: Batch, config: AskConfig) -> int:
    """The exit code. Ctrl-C ends the batch; what was finished is in the file."""
    check_ray(config)
    if batch.out is not None:
        # That it cannot be written, or that another process fills it, is better known before anything is spent.
        with lock_file(batch.out):
            if config.shard is not None:
                refuse_other_shards(batch.out, config.shard)
            JsonlWriter(batch.out).close()
    tasks = in_shard(batch.tasks, config.shard)
    progress, ended = BatchProgress(total=len(tasks) * batch.samples), True

    async def work() -> None:
        shown = terminal_progress()
        async with (
            open_setting(config, tasks=tasks, progress=shown) as here,
            on_ray(here, config, config, tasks=tasks, progress=shown) as setting,
        ):
            runs = run_many(
                tasks,
                setting,
                samples=batch.samples,
                out=batch.out,
                shard=config.shard,
                retry_failed=batch.retry_failed,
                progress=progress,
            )
            async with reported(progress, shown, "runs"):
                lines = Lines()
                try:
                    async for trajectory in runs:
                        if batch.as_json:
                            echo_json(lines.line(trajectory))
                finally:
                    await runs.aclose()

    try:
        asyncio.run(work())
    except KeyboardInterrupt:
        ended = False
    for line in _summary(progress, batch, ended=ended):
        echo(line, err=batch.as_json)
    return int(progress.failed > 0 or not ended)


def _summary(progress: BatchProgress, batch: Batch, *, ended: bool) -> list[str]:
    """Lines that say what came of it."""
    before = f" ({progress.resumed} were there before)" if progress.resumed else ""
    right = f"; {progress.right} of {progress.graded} right" if progress.graded else ""
    lines = [
        f"{progress.done} of {plural(progress.total or progress.done, 'run')}{before}: "
        f"{progress.answered} answered, {progress.failed} failed{right}",
        f"spent now: {spent(progress.usage)}, all runs added up",
    ]
    if batch.out is not None:
        lines.append(f"kept in {batch.out}")
    if not ended:
        lines.append("interrupted; the same command goes on from there")
    elif progress.failed and batch.out is not None:
        lines.append("the same command with --retry-failed tries the failed ones again")
    return lines
