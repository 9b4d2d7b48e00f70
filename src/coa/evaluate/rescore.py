"""Scores for runs that are there already."""

from __future__ import annotations

from coa.evaluate.folder import Folder, Journal, settle
from coa.evaluate.run import scoring
from coa.scoring import Scorer, score_trajectory
from coa.trajectory import Trajectory, read


async def rescore(
    folder: Folder, scorer: Scorer, *, replace: bool = False, unscored: bool = False, at_once: int = 32
) -> tuple[int, int]:
    """How many were scored now, and how many scores of that name were kept. `settle` then puts them in place."""
    settle(folder)
    journal = Journal(folder)
    now = kept = 0

    async def one(trajectory: Trajectory) -> None:
        done = await score_trajectory(trajectory, scorer)
        journal.score(done.key, {scorer.name: done.scores[scorer.name]})

    try:
        async with scoring(at_once) as work:
            for trajectory in read(folder.trajectories):
                before = trajectory.scores.get(scorer.name)
                if before is None or replace or (unscored and before.value is None):
                    now += 1
                    await work.add(one(trajectory))
                else:
                    kept += 1
    finally:
        journal.close()
    return now, kept
