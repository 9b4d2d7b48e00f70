"""Where long work stands, on stderr: redrawn in place for a person, a line now and then for a log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from coa.cli.terminal import printable

if TYPE_CHECKING:
    from coa.runtime import Progress

REDRAW_S: Final = 0.5
LOG_S: Final = 30.0
SLOW_S: Final = 60.0
"""From when on a run is named as slow."""


class TerminalProgress:
    """`coa.progress.Progress` for a terminal: drawn when the work reports, at most every half second."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._live: Live | None = None
        self._title = ""
        self._total: int | None = None
        self._last = 0.0

    def start(self, title: str, total: int | None = None) -> None:
        self._title, self._total, self._last = title, total, time.monotonic()
        if self._console.is_terminal:
            # Transient: the result takes its place. Without rich's own thread: nothing is drawn while nothing changes.
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
            self._last -= REDRAW_S

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        self._total = self._total if total is None else total
        now = time.monotonic()
        if now - self._last < (LOG_S if self._live is None else REDRAW_S):
            return
        self._last = now
        of = "" if self._total is None else f"/{self._total:,}"
        self._show(f"{self._title}: {done:,}{of}" + (f", {printable(note)}" if note else ""))

    def say(self, line: str) -> None:
        typer.echo(printable(line), err=True)

    def finish(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _show(self, line: str) -> None:
        if self._live is None:
            typer.echo(line, err=True)
        else:
            self._live.update(Text(line, style="bright_black"), refresh=True)


def terminal_progress() -> TerminalProgress:
    """What every command gives to the library function it calls."""
    return TerminalProgress()


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
