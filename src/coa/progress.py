"""How a long-running stage reports where it stands. The command line draws it; a library user may leave it out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Progress(Protocol):
    """A stage starts a part of its work, updates it as it goes, and finishes it. Parts follow each other."""

    def start(self, title: str, total: int | None = None) -> None: ...

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        """`note` is a short status line, such as speed and failures so far."""

    def say(self, line: str) -> None:
        """A line to keep, unlike a status that the next update overwrites."""

    def finish(self) -> None: ...


class Silent:
    """The default: no output."""

    def start(self, title: str, total: int | None = None) -> None: ...

    def update(self, done: int, total: int | None = None, note: str = "") -> None: ...

    def say(self, line: str) -> None: ...

    def finish(self) -> None: ...


class Lines(Silent):
    """For scripts: the lines to keep go to a function, such as `print`."""

    def __init__(self, write: Callable[[str], object] = print) -> None:
        self._write = write

    def say(self, line: str) -> None:
        self._write(line)
