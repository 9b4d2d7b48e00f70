"""Runs that ran out of tokens or context, and observations of which the model saw only a part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from coa.report import plural
from coa.scan.finding import Note, Severity
from coa.scan.steps import is_observation
from coa.trajectory import Profile, Stop, Trajectory
from coa.trajectory.shorten import omitted

_FULL: Final = {
    Stop.TOKENS: "the model had written all the tokens that it may",
    Stop.CONTEXT: "the context was full",
}


class TruncatedContexts:
    name = "truncated_contexts"
    about = "runs that ran out of tokens or context, and observations that were shortened"

    def scan(self, trajectory: Trajectory, profile: Profile) -> Iterator[Note]:
        if (why := _FULL.get(trajectory.stop)) is not None:
            answered = bool((trajectory.answer or "").strip())
            yield Note(
                len(trajectory.steps) - 1 if trajectory.steps else None,
                Severity.WARNING if answered else Severity.ERROR,
                f"{why}; the run {'was led to an answer' if answered else 'has no answer'}",
                kind=f"out of {trajectory.stop.value}",
            )
        cut = {
            index: missing
            for index, step in enumerate(trajectory.steps)
            if is_observation(step) and (missing := omitted(step.text))
        }
        if cut:
            observations = plural(len(cut), "observation was", "observations were")
            message = f"{observations} shortened by {plural(sum(cut.values()), 'character')} in all"
            yield Note(next(iter(cut)), Severity.INFO, message, kind="shortened")
