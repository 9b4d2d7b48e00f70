"""Where a batch of runs stands, on stderr: redrawn in place for a person, a line now and then for a log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from coa.cli.terminal import printable
from coa.runtime import Progress

REDRAW_S: Final = 0.5
LOG_S: Final = 30.0
SLOW_S: Final = 60.0
"""From when on a run is named as slow."""


def standing(progress: Progress) -> str:
    """One line: done and total, success, failures, speed, cost, time left."""
    total = "" if progress.total is None else f"/{progress.total}"
    parts = [f"{progress.done}{total} done" + (f" ({progress.resumed} before)" if progress.resumed else "")]
    if progress.graded:
        parts.append(f"{progress.right} of {progress.graded} right ({progress.right / progress.graded:.1%})")
    else:
        parts.append(f"{progress.answered} answered")
    if progress.failed:
        parts.append(f"{progress.failed} failed")
    parts.append(f"{progress.tokens_per_second:.0f} tokens/s")
    if progress.usage.cost is not None:
        parts.append(f"cost {progress.usage.cost:.4g}")
    if progress.seconds_left:
        parts.append(f"{timedelta(seconds=round(progress.seconds_left))} left")
    return ", ".join(parts)


def stuck(progress: Progress, seconds: float = SLOW_S) -> str | None:
    """The run that takes longest, and how many more take long."""
    slow = progress.stuck(seconds)
    if not slow:
        return None
    return f"slow: {printable(slow[0])}" + (f"; and {len(slow) - 1} more" if len(slow) > 1 else "")


@asynccontextmanager
async def shown(progress: Progress) -> AsyncIterator[None]:
    """Shows it while the block runs, and once more at the end."""
    console = Console(stderr=True, highlight=False)
    follow = _redraw if console.is_terminal else _log
    following = asyncio.create_task(follow(progress, console))
    try:
        yield
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def _redraw(progress: Progress, console: Console) -> None:
    # Drawn from the event loop, not by rich's own thread: the numbers change under it.
    with Live(console=console, auto_refresh=False) as live:
        try:
            while True:
                live.update(Text(_lines(progress), style="bright_black"), refresh=True)
                await asyncio.sleep(REDRAW_S)
        finally:
            live.update(Text(standing(progress), style="bright_black"), refresh=True)


async def _log(progress: Progress, console: Console) -> None:
    try:
        while True:
            await asyncio.sleep(LOG_S)
            typer.echo(_lines(progress), err=True)
    finally:
        typer.echo(standing(progress), err=True)


def _lines(progress: Progress) -> str:
    return "\n".join(filter(None, [standing(progress), stuck(progress)]))
