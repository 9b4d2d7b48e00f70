"""Where long work stands, on stderr: redrawn in place for a person, a line now and then for a log."""

from __future__ import annotations

import time
from typing import Final

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from coa.cli.terminal import printable

REDRAW_S: Final = 0.5
LOG_S: Final = 30.0


class TerminalProgress:
    """`coa.progress.Progress` for a terminal: shown when the work reports, at most every half second.

    A person sees one line that goes away when the work ends, because the result takes its place. A log gets a line
    every half minute, and the last one.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._live: Live | None = None
        self._title = self._unshown = ""
        self._total: int | None = None
        self._last = 0.0

    def start(self, title: str, total: int | None = None) -> None:
        self._title, self._total, self._last, self._unshown = title, total, time.monotonic(), ""
        if self._console.is_terminal:
            # Without rich's own thread: nothing is drawn while nothing changes.
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
            self._last -= REDRAW_S

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        self._total = self._total if total is None else total
        of = "" if self._total is None else f"/{self._total:,}"
        self._unshown = f"{self._title}: {done:,}{of}" + (f", {printable(note)}" if note else "")
        if time.monotonic() - self._last >= (LOG_S if self._live is None else REDRAW_S):
            self._last = time.monotonic()
            self._show()

    def say(self, line: str) -> None:
        if self._live is None:
            typer.echo(printable(line), err=True)
        else:
            self._live.console.print(Text(printable(line)), soft_wrap=True)

    def finish(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        elif self._unshown:
            self._show()

    def _show(self) -> None:
        line, self._unshown = self._unshown, ""
        if self._live is None:
            typer.echo(line, err=True)
        else:
            self._live.update(Text(line, style="bright_black"), refresh=True)


def terminal_progress() -> TerminalProgress:
    """What every command gives to the library function that it calls."""
    return TerminalProgress()
