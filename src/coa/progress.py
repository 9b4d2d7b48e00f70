"""How a long call reports where it stands: a protocol that the command line implements once, and that is optional.

    coa.rl(config, "runs/rl", progress=PrintProgress(print))

A stage calls `start` for each part of its work, `update` as often as it likes (an implementation decides how often to
show it), `say` for a line that should stay, and `finish` at the end of the part, also when it fails. Parts may lie in
one another; `update` and `finish` are about the innermost. `part` makes sure that each that is started is finished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol


def time_left(seconds: float | None) -> str:
    """For a note, such as "0:01:12 left"; empty where nothing is known or nothing is left."""
    return f"{timedelta(seconds=round(seconds))} left" if seconds else ""


class Progress(Protocol):
    """Interface for showing how far a long call is. All stages take one as `progress`."""

    def start(self, title: str, total: int | None = None) -> None:
        """A part of the work begins; `total` is its number of items, where it is known."""

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        """`done` items are finished; `note` says more in a few words."""

    def say(self, line: str) -> None:
        """A message that stays on the screen or in the log."""

    def finish(self) -> None:
        """The part that was started last has ended, well or not."""


@contextmanager
def part(progress: Progress, title: str, total: int | None = None) -> Iterator[None]:
    """A part of the work, which ends with the block."""
    progress.start(title, total)
    try:
        yield
    finally:
        progress.finish()


class Silent:
    """Shows nothing: the default of every library function."""

    def start(self, title: str, total: int | None = None) -> None:
        pass

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        pass

    def say(self, line: str) -> None:
        pass

    def finish(self) -> None:
        pass


class PrintProgress(Silent):
    """Passes the messages of a long call to a function, `print` by default. It shows no bars."""

    def __init__(self, write: Callable[[str], object] = print) -> None:
        self._write = write

    def say(self, line: str) -> None:
        self._write(line)
