"""Batches that can be had again: who shares a forward pass with whom follows from the runs, not from the clock.

Products of matrices of 7 and of 8 rows differ in their last bits, so sampled logprobs depend on who is in the batch,
and that on how long each tool took. Here a run that left the batch comes back an agreed number of forward passes later,
no sooner and no later: the others go on meanwhile, and then wait for it if they must.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from coa.models.local.request import Request

PAUSE: Final = 4
"""Forward passes between leaving and coming back: time in which tools answer while others write."""


class Lockstep:
    """For a set of runs known beforehand, each named by the seed of its requests. Used in the engine's thread only."""

    def __init__(self, runs: Iterable[int], *, pause: int = PAUSE) -> None:
        self._due = dict.fromkeys(runs, 0)
        """When runs that are not in the batch have to be back."""
        self._here: dict[int, Request] = {}
        self._pause = pause

    def arrive(self, request: Request) -> None:
        run = request.sampling.seed
        assert run is not None, "runs in lockstep are known by their seeds"
        self._here[run] = request
        self._due.setdefault(run, 0)

    def went(self, request: Request, clock: int) -> None:
        """It has what it asked for."""
        if request.sampling.seed is not None:
            self._due[request.sampling.seed] = clock + self._pause

    def leave(self, run: int) -> None:
        """It is over."""
        self._due.pop(run, None)
        self._here.pop(run, None)

    @property
    def held(self) -> list[Request]:
        """Requests that are here and not yet admitted."""
        return list(self._here.values())

    def first_due(self) -> int | None:
        return min(self._due.values(), default=None)

    def complete(self, clock: int) -> bool:
        """Whether all that have to be back are."""
        return all(run in self._here and not self._here[run].cancelled for run, at in self._due.items() if at <= clock)

    def admitted(self, clock: int) -> list[Request]:
        ready = sorted(run for run, at in self._due.items() if at <= clock)
        for run in ready:
            del self._due[run]
        return [self._here.pop(run) for run in ready]
