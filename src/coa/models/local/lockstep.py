"""Reproducible batches: the runs alone decide which rows share a forward pass, not the time that their tools take.

Products of matrices of 7 and of 8 rows differ in their last bits, so sampled logprobs depend on which rows are in the
batch, and that depends on how long each tool took. In lockstep, a run that left the batch comes back a fixed number of
forward passes later, no sooner and no later. The other runs continue meanwhile, and then wait for it if necessary.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from coa.models.local.request import Request

PAUSE: Final = 4
"""Forward passes between leaving and coming back: time for tools to answer while other runs write."""


class Lockstep:
    """For a given set of runs, each identified by the seed of its requests. Used in the engine's thread only."""

    def __init__(self, runs: Iterable[int], *, pause: int = PAUSE) -> None:
        self._due = dict.fromkeys(runs, 0)
        """The pass at which each run outside the batch has to be back."""
        self._here: dict[int, Request] = {}
        self._inside: dict[int, Request] = {}
        """Requests of the runs in the batch."""
        self._pause = pause

    def arrive(self, request: Request) -> None:
        run = request.sampling.seed
        assert run is not None, "a run in lockstep needs a seed"
        self._here[run] = request
        self._inside.pop(run, None)  # its last request was cancelled and is still in the batch
        self._due.setdefault(run, 0)

    def went(self, request: Request, clock: int) -> None:
        """A request is answered or cancelled."""
        run = request.sampling.seed
        # The run of a cancelled request may be over, or may have sent another one: then nothing waits for it.
        if run is not None and self._inside.get(run) is request:
            del self._inside[run]
            self._due[run] = clock + self._pause

    def leave(self, run: int) -> None:
        """A run is over."""
        self._due.pop(run, None)
        self._here.pop(run, None)
        self._inside.pop(run, None)

    @property
    def held(self) -> list[Request]:
        """Requests that have arrived and are not admitted yet."""
        return list(self._here.values())

    def first_due(self) -> int | None:
        return min(self._due.values(), default=None)

    def complete(self, clock: int) -> bool:
        """Whether all runs that have to be back at this pass are."""
        return all(run in self._here and not self._here[run].cancelled for run, at in self._due.items() if at <= clock)

    def admitted(self, clock: int) -> list[Request]:
        ready = sorted(run for run, at in self._due.items() if at <= clock)
        for run in ready:
            del self._due[run]
            self._inside[run] = self._here.pop(run)
        return [self._inside[run] for run in ready]
