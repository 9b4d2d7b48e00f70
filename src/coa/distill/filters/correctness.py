"""The answer, judged again whatever the trace says of it: saved steps and saved answer can come from different runs.

The verdict itself comes from `coa.scoring` and stands in the trajectory's scores; here it only decides.
"""

from __future__ import annotations

from typing import Final

from coa.distill.config import DistillConfig
from coa.distill.filters.base import Dropped, Reason
from coa.trajectory import Profile, Trajectory

SCORE: Final = "answer"
"""Name of the score that this filter reads."""


def correctness(trajectory: Trajectory, profile: Profile, config: DistillConfig) -> Dropped | None:
    score = trajectory.scores.get(SCORE)
    if score is None or score.value is None:
        if config.quality.unscored == "keep":
            return None
        return Dropped(Reason.UNSCORED, score.reason if score else "nobody has judged the answer")
    if score.value < config.quality.correct_from:
        return Dropped(Reason.WRONG_ANSWER, score.reason or f"scored {score.value:g}")
    return None
