"""The answer, judged again whatever the trace says of it: saved steps and saved answer can come from different runs.

The verdict itself comes from `coa.scoring` and stands in the trajectory's scores; here it only decides.
"""

from __future__ import annotations

from typing import Final

from coa.distill.filters.base import Dropped, FilterInput, Reason, filter_of
from coa.distill.filters.quality import QUALITY
from coa.trajectory import Trajectory

WRONG_ANSWER: Final = Reason("wrong_answer")
UNSCORED: Final = Reason(
    "unscored",
    hint="Nobody could judge these answers: give the right ones with --tasks, a judge with --judge, "
    "or keep them with --keep-unscored.",
)

SCORE: Final = "answer"
"""Name of the score that this filter reads."""


@filter_of(QUALITY, WRONG_ANSWER, UNSCORED, needs_score=True)
def correctness(trajectory: Trajectory, given: FilterInput) -> Dropped | None:
    score = trajectory.scores.get(SCORE)
    if score is None or score.value is None:
        if given.config.quality.unscored == "keep":
            return None
        return Dropped(UNSCORED, score.reason if score else "nobody has judged the answer")
    if score.value < given.config.quality.correct_from:
        return Dropped(WRONG_ANSWER, score.reason or f"scored {score.value:g}")
    return None
