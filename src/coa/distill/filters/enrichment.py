"""Stages 3 and 4: fewer runs without reflection, more runs that corrected themselves."""

from __future__ import annotations

from typing import Final

from coa.distill.config import DistillConfig
from coa.distill.filters.base import Dropped, FilterInput, FilterStage, Reason, calls_of, draw, filter_of
from coa.trajectory import Profile, Trajectory
from coa.trajectory.profile import ScoreVerdict

REFLECTION: Final = "reflection"
"""The agent's tag."""
REFLECTION_STAGE: Final = FilterStage("reflection", "runs without reflection thinned out")
CORRECTION: Final = FilterStage("correction", "runs that corrected themselves written several times")
NO_REFLECTION: Final = Reason(
    "no_reflection",
    "These runs have no reflection, and only a share of such runs is kept.",
    settings=("reflection.kept_without=1",),
)


@filter_of(REFLECTION_STAGE, NO_REFLECTION)
def reflection(trajectory: Trajectory, given: FilterInput) -> Dropped | None:
    """Keeps a random share of the runs without reflection; a profile without such an agent keeps all of them."""
    profile, config = given.profile, given.config
    if REFLECTION not in profile.agents or any(step.agent == REFLECTION for step in trajectory.steps):
        return None
    share = config.reflection.share(profile)
    if draw(trajectory, config.seed) < share:
        return None
    return Dropped(NO_REFLECTION, f"no reflection; {share:g} of such runs are kept")


def corrected_itself(trajectory: Trajectory, profile: Profile) -> bool:
    """Whether the first check failed. (A run that passed the earlier filters has a right answer.)

    In a profile without scored checks: whether a reflection follows a failed call.
    """
    checks = {tag: agent.verdict for tag, agent in profile.agents.items() if isinstance(agent.verdict, ScoreVerdict)}
    for step in trajectory.steps:
        if (verdict := checks.get(step.agent)) is not None:
            return verdict.holds(step.text) is False
    if checks or REFLECTION not in profile.agents:
        return False
    failed = [call.step for call in calls_of(trajectory, profile) if not call.ok]
    return bool(failed) and any(step.agent == REFLECTION for step in trajectory.steps[failed[0] :])


@filter_of(CORRECTION)
def correction(trajectory: Trajectory, given: FilterInput) -> None:
    """Drops nothing: it holds the place of `copies` in the funnel."""


def copies(trajectory: Trajectory, profile: Profile, config: DistillConfig) -> int:
    return config.correction.copies if corrected_itself(trajectory, profile) else 1
