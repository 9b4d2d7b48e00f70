"""Scores for runs that are there already, and the report that follows from them."""

from __future__ import annotations

from typing import Any

import orjson

from coa.evaluate.attempts import Attempt, attempt_of, by_task, grammars
from coa.evaluate.folder import Folder, Journal, settle
from coa.evaluate.report import agreements, make_report, write_report
from coa.evaluate.run import scoring
from coa.folder import lock_file, write_atomic
from coa.models.base import Model
from coa.scoring import PROMPT_HASH, Scorer, score_trajectory
from coa.trajectory import Trajectory, read


async def rescore(
    folder: Folder, scorer: Scorer, *, replace: bool = False, unscored: bool = False, at_once: int = 32
) -> tuple[int, int]:
    """How many were scored now, and how many scores of that name were kept."""
    with lock_file(folder.trajectories):
        return await _rescore(folder, scorer, replace, unscored, at_once)


async def _rescore(folder: Folder, scorer: Scorer, replace: bool, unscored: bool, at_once: int) -> tuple[int, int]:
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
    settle(folder)
    return now, kept


def sum_up(folder: Folder, scorer: str, judging: Model | None) -> dict[str, Any]:
    """What the scores of that name say; an evaluation's report is made anew by them."""
    grammar = grammars()
    attempts = [attempt_of(run, scorer, grammar(run)) for run in read(folder.trajectories)]
    report = _report(folder, attempts, scorer, judging) if folder.is_evaluation else None
    return {
        "scorer": scorer,
        "runs": len(attempts),
        "right": sum(attempt.right for attempt in attempts),
        "failed": sum(attempt.failed for attempt in attempts),
        "unscored": sum(attempt.unscored for attempt in attempts),
        "agreement": {name: counts["rate"] for name, counts in agreements(by_task(attempts), scorer).items()},
        "report": report,
    }


def _report(folder: Folder, attempts: list[Attempt], scorer: str, judging: Model | None) -> str:
    judge = None if judging is None else {"model": judging.name, "prompt_hash": PROMPT_HASH}
    # Beside what was asked for when it ran: the evaluation itself may still go on with its own scorer.
    config = folder.read_config() | {"scored_again": {"by": scorer, "judge": judge}}
    write_atomic(folder.config, orjson.dumps(config, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    inside = [attempt for attempt in attempts if attempt.sample < int(config["samples"])]
    write_report(folder, make_report(inside, config, retried=folder.retried()))
    return str(folder.page)
