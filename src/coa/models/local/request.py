"""A call to the engine, and its result."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from coa.models.base import Finish, Sampling
from coa.trajectory.grammar import Grammar


@dataclass(frozen=True, slots=True)
class Decoded:
    """What the engine sampled for a request."""

    ids: list[int]
    logprobs: list[float]
    finish: Finish
    computed: int
    """Number of tokens of the context that had to be computed; the KV of the others was kept."""
    log_kept: float | None = None
    """Sum over all tokens of the logarithm of the probability mass that the grammar allowed; None without a grammar."""
    ended: tuple[int, float] | None = None
    """The token that ended the turn, which is not in `ids`, and its logprob; None if no token ended it."""


@dataclass(eq=False)
class Request:
    """One call: continue after `ids`. `done` is called once, in the engine's thread."""

    ids: list[int]
    stop: tuple[str, ...]
    sampling: Sampling
    done: Callable[[Decoded | Exception], None]
    on_text: Callable[[str], None] | None = None
    grammar: Grammar | None = None
    cancelled: bool = False
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.begin_again()

    def begin_again(self) -> None:
        """Restart the random numbers. They depend on the context's length, or all steps of a run would draw alike."""
        seed = self.sampling.seed
        self.random = random.Random(None if seed is None else f"{seed}/{len(self.ids)}")
