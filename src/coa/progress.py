"""How a long call reports where it stands: a protocol that the command line implements once, and that is optional.

    coa.rl(config, "runs/rl", progress=PrintProgress(print))

A stage calls `start` for each part of its work, `update` as often as it likes (an implementation decides how often to
show it), `say` for a line that should stay, and `finish` at the end, also when it fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Progress(Protocol):
    def start(self, title: str, total: int | None = None) -> None:
        """The work begins; `total` is the number of items, where it is known."""

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        """`done` items are finished; `note` says more in a few words."""

    def say(self, line: str) -> None:
        """A message that stays on the screen or in the log."""

    def finish(self) -> None:
        """The work has ended, well or not."""


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
    """For scripts: the messages go to a function, such as `print`."""

    def __init__(self, write: Callable[[str], object] = print) -> None:
        self._write = write

    def say(self, line: str) -> None:
        self._write(line)
