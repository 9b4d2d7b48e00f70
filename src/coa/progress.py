"""How a long call reports where it stands: a protocol that the command line implements once, and that is optional.

    class Printed:
        def start(self, title: str, total: int | None = None) -> None: print(title)
        ...
    coa.distill.distill(config, ["traces/"], "data/", progress=Printed())

A stage calls `start` once, `update` as often as it likes (an implementation decides how often to show it), `say` for a
line that should stay, and `finish` at the end, also when it fails.
"""

from __future__ import annotations

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
