"""Shortens the observations of trajectories that are too long for the student, and drops those that stay too long."""

from __future__ import annotations

from typing import Final

from coa.distill.filters.base import Dropped, FilterInput, FilterStage, Reason, filter_of
from coa.trajectory import Drop, Trajectory, fit
from coa.trajectory.types import FrozenDict

LENGTH: Final = FilterStage("length", "fits the student")
TOO_LONG: Final = Reason(
    "too_long",
    "These runs do not fit, even with shortened observations. Train with as many tokens, too.",
    settings=("length.max_tokens=131072",),
)
SHORTENED: Final = "shortened"
"""In the meta of a trajectory whose observations were cut."""


@filter_of(LENGTH, TOO_LONG)
def length(trajectory: Trajectory, given: FilterInput) -> Trajectory | Dropped | None:
    """Measures only if the student's tokenizer is known. It comes late, because tokenizing takes long."""
    if given.tokenizer is None:
        return None
    most = given.config.length.max_tokens
    found = fit(trajectory, given.tokenizer, given.profile, max_tokens=most)
    if isinstance(found, Drop):
        return Dropped(TOO_LONG, f"{found}; at most {most} tokens are allowed")
    if found[0] is trajectory:
        return None
    return found[0].model_copy(update={"meta": FrozenDict({**found[0].meta, SHORTENED: True})})
