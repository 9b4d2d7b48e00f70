"""Where long work stands, on stderr: a bar for a person, a line now and then for a log."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from rich import progress as rich_progress
from rich.console import Console, RenderableType

from coa.addresses import without_passwords
from coa.cli.output import echo, one_line
from coa.cli.terminal import SafeConsole, SafeText

FIRST_S: Final = 2.0
"""A log gets its first line after this time."""
LOG_S: Final = 30.0
"""Seconds between two lines of a log, unless COA_PROGRESS_SECONDS names another number."""
_TICK_S: Final = 0.5


@dataclass
class _Part:
    """A part of the work that has begun and not ended."""

    title: str
    total: int | None
    began: float
    done: int = 0
    note: str = ""
    reported: bool = False
    """Whether it has said anything since it began."""

    def counted(self) -> str:
        if self.total is None:
            return f"{self.done:,}" if self.done else ""
        return f"{self.done:,}/{self.total:,}"


class TerminalProgress:
    """`coa.progress.Progress` for a terminal. It shows that work goes on even while the work does not report.

    A person sees a bar for each part of the work with the time that has passed, and below them what the work says about
    itself. All of it goes away when the work ends, because the result takes its place. A log gets a line after two
    seconds, then one every half minute, and the last one where the work has said anything.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or SafeConsole(stderr=True)
        self._parts: list[_Part] = []
        self._bars: _Bars | None = None
        self._guard = threading.RLock()
        self._ended = threading.Event()
        self._due = 0.0
        self._log_s = _log_seconds()
        self._shown: tuple[str, str, str] | None = None
        """What the log's last line was about."""

    def start(self, title: str, total: int | None = None) -> None:
        with self._guard:
            self._parts.append(_Part(one_line(without_passwords(title)), total, time.monotonic()))
            if self._console.is_terminal:
                self._bars = self._bars or _Bars(self._console)
                self._bars.push(self._parts[-1])
            elif len(self._parts) == 1:
                self._due, self._shown, self._ended = time.monotonic() + FIRST_S, None, threading.Event()
                threading.Thread(target=self._follow, args=(self._ended,), name="coa-progress", daemon=True).start()

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        with self._guard:
            if not self._parts:
                return
            part = self._parts[-1]
            part.done, part.note, part.reported = done, one_line(without_passwords(note)), True
            part.total = part.total if total is None else total
            if self._bars is not None:
                self._bars.show(part)
            else:
                self.tick()

    def tick(self) -> None:
        """Write a line to the log if one is due."""
        with self._guard:
            if self._parts and time.monotonic() >= self._due:
                self._due = time.monotonic() + self._log_s
                self._write(self._parts[-1])

    def say(self, line: str) -> None:
        if self._bars is None:
            echo(line, err=True)
        else:
            self._bars.console.print(SafeText(one_line(line)), soft_wrap=True)

    def finish(self) -> None:
        with self._guard:
            if not self._parts:
                return
            part = self._parts.pop()
            if self._bars is not None:
                self._bars.pop(self._parts[-1] if self._parts else None)
                if not self._parts:
                    self._bars.stop()
                    self._bars = None
                return
            if part.reported and self._shown != _state(part):
                self._write(part)
            if not self._parts:
                self._ended.set()

    def _follow(self, ended: threading.Event) -> None:
        while not ended.wait(_TICK_S):
            self.tick()

    def _write(self, part: _Part) -> None:
        counted, note = part.counted(), part.note
        line = part.title + (f": {counted}" if counted else "") + (f", {note}" if note else "")
        echo(f"{line}, after {_clock(time.monotonic() - part.began)}", err=True)
        self._shown = _state(part)


def _log_seconds() -> float:
    try:
        return max(float(os.environ.get("COA_PROGRESS_SECONDS", LOG_S)), _TICK_S)
    except ValueError:
        return LOG_S


def _state(part: _Part) -> tuple[str, str, str]:
    return part.title, part.counted(), part.note


class _Bars(rich_progress.Progress):
    """A bar for each part, and below them what the innermost says about itself. Rich draws them in its own thread."""

    def __init__(self, console: Console) -> None:
        self._note = ""
        super().__init__(
            rich_progress.SpinnerColumn(),
            rich_progress.TextColumn("{task.description}", markup=False),
            rich_progress.BarColumn(),
            rich_progress.TextColumn("{task.fields[counted]}", markup=False),
            rich_progress.TimeElapsedColumn(),
            console=console,
            transient=True,
            refresh_per_second=4,
            # Results may go to a file while a person watches stderr: then they must not be drawn on the screen.
            redirect_stdout=sys.stdout.isatty(),
        )
        self._stack: list[rich_progress.TaskID] = []
        self.start()

    def push(self, part: _Part) -> None:
        self._note = ""
        self._stack.append(self.add_task(part.title, total=part.total, counted=part.counted()))

    def show(self, part: _Part) -> None:
        self._note = part.note
        self.update(self._stack[-1], completed=part.done, total=part.total, counted=part.counted())

    def pop(self, outer: _Part | None) -> None:
        self.remove_task(self._stack.pop())
        self._note = outer.note if outer is not None else ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        if self._note:
            yield SafeText(self._note, style="bright_black")


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def terminal_progress() -> TerminalProgress:
    """What every command gives to the library function that it calls."""
    return TerminalProgress()
