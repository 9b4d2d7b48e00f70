"""Stage 1: runs with too few tool calls to show cooperation, or with more than anyone should learn from."""

from __future__ import annotations

from typing import Final

from coa.distill.filters.base import Dropped, FilterInput, FilterStage, Reason, calls_of, filter_of
from coa.report import plural
from coa.trajectory import Trajectory

COMPLEXITY: Final = FilterStage("complexity", "enough tool calls, and not too many")
TOO_FEW_CALLS: Final = Reason(
    "too_few_calls",
    "These runs make fewer tool calls than the profile asks for ([distill] min_tool_calls).",
    settings=("complexity.fewest_calls=0",),
)
TOO_MANY_CALLS: Final = Reason(
    "too_many_calls",
    "These runs make more tool calls than anyone should learn from.",
    settings=("complexity.most_calls=1000",),
)


@filter_of(COMPLEXITY, TOO_FEW_CALLS, TOO_MANY_CALLS)
def complexity(trajectory: Trajectory, given: FilterInput) -> Dropped | None:
    profile, config = given.profile, given.config
    if trajectory.answer is None:
        return None  # whatever its calls, it is dropped for want of an answer, and no setting about calls would help
    count, least = len(calls_of(trajectory, profile)), config.complexity.least(profile)
    if count < least:
        return Dropped(TOO_FEW_CALLS, f"{plural(count, 'tool call')}; at least {least} are required")
    if count > config.complexity.most_calls:
        return Dropped(
            TOO_MANY_CALLS, f"{plural(count, 'tool call')}; at most {config.complexity.most_calls} are allowed"
        )
    return None
