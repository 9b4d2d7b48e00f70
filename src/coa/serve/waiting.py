"""Runs in memory that wait for the result of a client's tool.

A run stays here for a while after it was continued: a client whose connection broke sends the result again, and the run
then goes on from the same place again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from coa.serve.caller import Caller
from coa.serve.request import Suspended

MOST: Final = 512
"""Number of runs. The oldest make room; the protocols can put a run together again from what the client sends."""
WAITING_S: Final = 3600.0
CONTINUED_S: Final = 600.0


@dataclass(slots=True)
class _Held:
    run: Suspended
    caller: Caller
    until: float
    continued: bool = False


class WaitingRuns:
    def __init__(
        self, abandon: Callable[[Suspended, Caller], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`abandon` is called with each run that is given up without having been continued."""
        self._abandon, self._clock = abandon, clock
        self._held: dict[str, _Held] = {}

    def add(self, run: Suspended, caller: Caller) -> None:
        self._held[run.call] = _Held(run, caller, self._clock() + WAITING_S)
        if len(self._held) > MOST:
            self._drop(next(iter(self._held)))

    def find(self, call: str, caller: Caller) -> Suspended | None:
        held = self._held.get(call)
        return held.run if held is not None and held.caller == caller else None

    def continued(self, call: str) -> None:
        """The client sent the result."""
        if (held := self._held.get(call)) is not None:
            held.continued, held.until = True, self._clock() + CONTINUED_S

    def expire(self) -> None:
        now = self._clock()
        for call in [call for call, held in self._held.items() if held.until < now]:
            self._drop(call)

    def clear(self) -> None:
        for call in list(self._held):
            self._drop(call)

    def _drop(self, call: str) -> None:
        held = self._held.pop(call)
        if not held.continued:
            self._abandon(held.run, held.caller)
