"""Stage 1: runs with too few tool calls to show cooperation, or with more than anyone should learn from."""

from __future__ import annotations

from coa.distill.config import DistillConfig
from coa.distill.filters.base import Dropped, Reason, calls_of
from coa.trajectory import Profile, Trajectory


def complexity(trajectory: Trajectory, profile: Profile, config: DistillConfig) -> Dropped | None:
    count, least = len(calls_of(trajectory, profile)), config.complexity.least(profile)
    if count < least:
        return Dropped(Reason.TOO_FEW_CALLS, f"{count} tool calls; at least {least} are asked for")
    if count > config.complexity.most_calls:
        return Dropped(Reason.TOO_MANY_CALLS, f"{count} tool calls; at most {config.complexity.most_calls} are allowed")
    return None
