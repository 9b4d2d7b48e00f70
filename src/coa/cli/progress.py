"""Where a stage stands, on stderr: redrawn in place for a person, a line now and then for a log."""

from __future__ import annotations

import time
from typing import Final

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from coa.cli.terminal import printable
from coa.progress import Progress

LOG_S: Final = 30.0


def terminal_progress() -> Progress:
    console = Console(stderr=True, highlight=False)
    return _Redrawn(console) if console.is_terminal else _Logged()


def _line(title: str, done: int, total: int | None, note: str) -> str:
    counted = f"{done:,}" + (f"/{total:,}" if total is not None else "")
    return printable(f"{title}: {counted} done" + (f", {note}" if note else ""))


class _Redrawn:
    """For a person who looks. Drawn when the stage says so, not by rich's own thread: the numbers change under it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._title = ""

    def start(self, title: str, total: int | None = None) -> None:
        self._title = title
        self._live = Live(console=self._console, auto_refresh=False)
        self._live.start()

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        if self._live is not None:
            text = Text(_line(self._title, done, total, note), style="bright_black")
            self._live.update(text, refresh=True)

    def say(self, line: str) -> None:
        self._console.print(Text(printable(line)))

    def finish(self) -> None:
        if self._live is not None:
            self._live.stop()
        self._live = None


class _Logged:
    """For a log: a line every half a minute, and the last one."""

    def __init__(self) -> None:
        self._title, self._last = "", ""
        self._next = 0.0

    def start(self, title: str, total: int | None = None) -> None:
        self._title, self._last = title, ""
        self._next = time.monotonic() + LOG_S

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        self._last = _line(self._title, done, total, note)
        if time.monotonic() >= self._next:
            self.say(self._last)
            self._next = time.monotonic() + LOG_S

    def say(self, line: str) -> None:
        typer.echo(printable(line), err=True)

    def finish(self) -> None:
        if self._last:
            self.say(self._last)
