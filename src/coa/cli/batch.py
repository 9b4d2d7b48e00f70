"""`coa run --tasks`: many runs from the shell, with progress and resuming."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from coa.cli.asking import came_to_its_end
from coa.cli.display import spent
from coa.cli.progress import shown
from coa.report import plural
from coa.runtime import Progress, Setting
from coa.trajectory import Task


@dataclass(frozen=True, slots=True)
class Batch:
    """What to run, how often, and where it goes."""

    tasks: Sequence[Task]
    samples: int = 1
    concurrency: int = 64
    out: Path | None = None
    retry_failed: bool = False
    as_json: bool = False


async def run_batch(batch: Batch, setting: Setting) -> tuple[Progress, bool]:
    """Where it stands at the end, and whether it came there. Ctrl-C ends it; what was finished is in the file."""
    progress = Progress(total=len(batch.tasks) * batch.samples)
    runs = setting.many(
        batch.tasks,
        samples=batch.samples,
        concurrency=batch.concurrency,
        out=batch.out,
        retry_failed=batch.retry_failed,
        progress=progress,
    )

    async def consume() -> None:
        async with shown(progress):
            try:
                async for trajectory in runs:
                    if batch.as_json:
                        typer.echo(trajectory.to_json())
            finally:
                await runs.aclose()

    return progress, await came_to_its_end(consume())


def summary(progress: Progress, batch: Batch, *, ended: bool) -> str:
    """What came of it, for stdout."""
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
    return "\n".join(lines)
