"""The stage `score`: score finished runs again, or by another scorer, and make the report anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from coa.blocking import run_blocking
from coa.errors import StoreError
from coa.evaluate.attempt_store import AttemptStore
from coa.evaluate.attempts import attempt_of
from coa.evaluate.folder import Folder, Journal, folders_in, settle
from coa.evaluate.report import make_report, write_report
from coa.evaluate.run import Scoring
from coa.evaluate.summary import summed_up
from coa.folder import lock_file, write_atomic
from coa.models.base import Model
from coa.scoring import PROMPT_HASH, Scorer, score_trajectory
from coa.scoring.opening import JudgeConfig, open_judge, open_scorer
from coa.trajectory import Trajectory, read


@dataclass(frozen=True)
class ScoreSummary:
    """What one scorer says about the runs in a folder or file."""

    run: str
    scorer: str
    runs: int
    right: int
    failed: int
    unscored: int
    scored_now: int
    kept: int
    """Number of scores of that name that existed before and were kept."""
    agreement: Mapping[str, float]
    """How often each other scorer agrees."""
    report: str | None
    """The page of an evaluation, made anew."""


def score(
    runs: Sequence[str | Path],
    scorer: str,
    *,
    judge: JudgeConfig | None = None,
    replace: bool = False,
    unscored: bool = False,
    concurrency: int = 32,
) -> list[ScoreSummary]:
    """Score finished runs again, or by another scorer, without running anything. Blocks.

    Scores of other names stay. Those of the same name stay too, unless `replace`, or `unscored` and without a value.
    """

    async def work() -> list[ScoreSummary]:
        async with open_judge(judge or JudgeConfig()) as judging:
            return [
                await _score(path, scorer, judging, replace, unscored, concurrency)
                for path in [found for run in runs for found in folders_in(Path(run))]
            ]

    return run_blocking(work())


async def _score(
    path: Path, name: str, judge: Model | None, replace: bool, unscored: bool, concurrency: int
) -> ScoreSummary:
    folder = Folder.of(path)
    if not folder.trajectories.is_file():
        raise StoreError(f"{path} holds no {folder.name}", hint="give an evaluation's folder or a .jsonl file")
    if folder.trajectories.suffix != ".jsonl":
        hint = f"coa export {path} --to trajectories --out {folder.trajectories.with_suffix('.jsonl')}"
        raise StoreError(f"{folder.trajectories}: scores are kept in .jsonl", hint=hint)
    verdicts = folder.path / "verdicts.sqlite" if judge is not None else None
    with folder.held():
        async with open_scorer(name, judge, verdicts=verdicts) as scorer:
            with lock_file(folder.trajectories):
                now, kept = await _rescore(folder, scorer, replace, unscored, concurrency)
        return _sum_up(folder, path, name, judge, now, kept)


async def _rescore(folder: Folder, scorer: Scorer, replace: bool, unscored: bool, at_once: int) -> tuple[int, int]:
    """The number of runs scored now, and the number of scores of that name that were kept."""
    settle(folder)
    journal = Journal(folder)
    now = kept = 0

    async def one(trajectory: Trajectory) -> None:
        done = await score_trajectory(trajectory, scorer)
        journal.score(done.key, {scorer.name: done.scores[scorer.name]})

    try:
        async with Scoring(at_once) as work:
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


def _sum_up(folder: Folder, path: Path, scorer: str, judging: Model | None, now: int, kept: int) -> ScoreSummary:
    """Count the scores; if it is an evaluation, its report is made anew from them."""
    counts: Counter[str] = Counter()
    with AttemptStore() as attempts:
        for run in read(folder.trajectories):
            attempt = attempt_of(run, scorer)
            attempts.add(attempt)
            counts.update(right=attempt.right, failed=attempt.failed, unscored=attempt.unscored)
        agreement = summed_up(attempts, scorer=scorer).agreements()
        report = _report(folder, attempts, scorer, judging) if folder.is_evaluation else None
    return ScoreSummary(
        run=str(path),
        scorer=scorer,
        runs=len(attempts),
        right=counts["right"],
        failed=counts["failed"],
        unscored=counts["unscored"],
        scored_now=now,
        kept=kept,
        agreement={name: found["rate"] for name, found in agreement.items()},
        report=report,
    )


def _report(folder: Folder, attempts: AttemptStore, scorer: str, judging: Model | None) -> str:
    judge = None if judging is None else {"model": judging.name, "prompt_hash": PROMPT_HASH}
    # Recorded beside the settings of the evaluation, which may still go on with its first scorer.
    config = folder.read_config() | {"scored_again": {"by": scorer, "judge": judge}}
    write_atomic(folder.config, orjson.dumps(config, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    samples = int(config["samples"])
    inside = ((task, [attempt for attempt in listed if attempt.sample < samples]) for task, listed in attempts)
    write_report(folder, make_report((item for item in inside if item[1]), config, retried=folder.retried()))
    return str(folder.page)
