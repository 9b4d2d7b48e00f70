"""A call to the engine, and what comes of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from coa.models.base import Finish, Sampling
from coa.trajectory.grammar import Grammar


@dataclass(frozen=True, slots=True)
class Result:
    ids: list[int]
    logprobs: list[float]
    finish: Finish
    computed: int
    """How many tokens of the context had to be computed; the others were remembered."""
    log_kept: float | None = None
    """Logarithm of the probability that the grammar left, over all tokens; None where there was no grammar."""
    ended: tuple[int, float] | None = None
    """The token that ended the turn, which `ids` do not hold, and its logprob; None where none did."""


@dataclass(eq=False)
class Request:
    """One call: go on after `ids`. `done` is called once, from the engine's thread."""

    ids: list[int]
    stop: tuple[str, ...]
    sampling: Sampling
    done: Callable[[Result | Exception], None]
    on_text: Callable[[str], None] | None = None
    grammar: Grammar | None = None
    cancelled: bool = False
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.begin_again()

    def begin_again(self) -> None:
        """The same draws from the start; other ones after another context, or all steps of a run would draw alike."""
        seed = self.sampling.seed
        self.random = random.Random(None if seed is None else f"{seed}/{len(self.ids)}")
