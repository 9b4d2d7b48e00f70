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
        self._inside: dict[int, Request] = {}
        """What runs in the batch are there for."""
        self._pause = pause

    def arrive(self, request: Request) -> None:
        run = request.sampling.seed
        assert run is not None, "runs in lockstep are known by their seeds"
        self._here[run] = request
        self._inside.pop(run, None)  # given up, and not yet out of the batch
        self._due.setdefault(run, 0)

    def went(self, request: Request, clock: int) -> None:
        """It has what it asked for, or has given it up."""
        run = request.sampling.seed
        # A run that gave up may be over by now, or have come again: then nobody must wait for it once more.
        if run is not None and self._inside.get(run) is request:
            del self._inside[run]
            self._due[run] = clock + self._pause

    def leave(self, run: int) -> None:
        """It is over."""
        self._due.pop(run, None)
        self._here.pop(run, None)
        self._inside.pop(run, None)

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
            self._inside[run] = self._here.pop(run)
        return [self._inside[run] for run in ready]
