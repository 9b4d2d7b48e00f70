"""The stage `score`: score finished runs again, or by another scorer, and make the report anew.

The runs that are scored are never changed unless the caller asks for it. Their scored copy is written to another file
or folder, beside them by default. The same call on a copy that exists goes on with it: runs that it lacks are added,
and scores that it has are kept.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from coa.blocking import run_blocking
from coa.errors import ConfigError, StoreError
from coa.evaluate.attempt_store import AttemptStore
from coa.evaluate.attempts import attempt_of, unscored_warning
from coa.evaluate.folder import Folder, Journal, folders_in, settle
from coa.evaluate.report import make_report, write_report
from coa.evaluate.run import Scoring
from coa.evaluate.summary import summed_up
from coa.folder import CONFIG, lock_file, replacing, write_atomic
from coa.models.base import Model
from coa.progress import Progress, Silent, part, time_left
from coa.scoring import PROMPT_HASH, Scorer, check_scorer, score_trajectory
from coa.scoring.opening import JudgeConfig, open_judge, open_scorer
from coa.trajectory import Trajectory, read
from coa.trajectory.store import find, write
from coa.trajectory.types import FrozenDict

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ScoreSummary:
    """What one scorer says about the runs in a folder or file."""

    run: str
    out: str
    """The folder or file that the scores were written to."""
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
    out: str | Path | None = None,
    in_place: bool = False,
    judge: JudgeConfig | None = None,
    replace: bool = False,
    unscored: bool = False,
    concurrency: int = 32,
    progress: Progress | None = None,
) -> list[ScoreSummary]:
    """Score finished runs with a scorer, without running them again.

    Scores with other names are kept. Scores with the same name are kept too, unless `replace` or `unscored` is set.

    Args:
        runs: Evaluations, run folders or files of trajectories.
        scorer: Name of a scorer, or `module:function`.
        out: Where to write the scored copy. Default: `NAME.scored.jsonl` beside a file, `NAME-scored` beside a folder.
        in_place: Add the scores to the runs themselves instead.
        judge: The model that judges answers, for scorers that need one.
        replace: Replace existing scores of this scorer.
        unscored: Replace existing scores of this scorer that have no value.
        concurrency: Number of answers scored at a time.
        progress: Shows how far the work is.

    Returns:
        One summary for each run.

    Raises:
        CoaError: The runs cannot be read, the scorer cannot be used, or the copy holds other runs.
    """
    if out is not None and in_place:
        raise ConfigError("out and in_place exclude each other", hint="leave one of them out")
    if out is not None and len(runs) > 1:
        raise ConfigError("only one run can be scored into one --out", hint="score them one after the other")
    check_scorer(scorer, judged=judge is not None and judge.judge is not None)
    places = [
        place for run in runs for place in _places(Path(run), None if out is None else Path(out), in_place=in_place)
    ]

    async def work() -> list[ScoreSummary]:
        async with open_judge(judge or JudgeConfig()) as judging:
            return [
                await _score(run, target, scorer, judging, replace, unscored, concurrency, progress or Silent())
                for run, target in places
            ]

    return run_blocking(work())


def _places(run: Path, out: Path | None, *, in_place: bool) -> Iterator[tuple[Path, Path]]:
    """The runs that a path means, each with the place of its scored copy."""
    if not run.exists():
        raise StoreError(f"there is no file or folder {run}", hint="give an evaluation's folder or a .jsonl file")
    for path in folders_in(run):
        file = find(path)
        if in_place:
            if file.suffix != ".jsonl":
                raise StoreError(f"{file}: scores can be added to .jsonl only", hint="leave --in-place out")
            yield path, path
        else:
            target = out or _beside(run)
            if file == path and target.suffix != ".jsonl":
                raise StoreError(f"{target}: the scored runs of a file are written to .jsonl", hint="--out NAME.jsonl")
            target = target if path == run else target / path.name
            if target.resolve() == path.resolve():
                raise StoreError(f"{path} would be rewritten", hint="choose another --out, or add --in-place instead")
            yield path, target


def _beside(run: Path) -> Path:
    if run.is_file():
        return run.with_name(f"{run.stem}.scored.jsonl")
    named = run if run.name not in ("", "..") else run.resolve()
    return named.with_name(f"{named.name}-scored")


async def _score(
    run: Path,
    target: Path,
    name: str,
    judge: Model | None,
    replace: bool,
    unscored: bool,
    concurrency: int,
    progress: Progress,
) -> ScoreSummary:
    folder = Folder(target) if run.is_dir() else Folder(target.parent, target.name)
    folder.path.mkdir(parents=True, exist_ok=True)
    verdicts = folder.path / "verdicts.sqlite" if judge is not None else None
    with folder.held():
        async with open_scorer(name, judge, verdicts=verdicts) as scorer:
            with lock_file(folder.trajectories):
                if target != run:
                    _copy(run, folder)
                now, kept = await _rescore(folder, scorer, replace, unscored, concurrency, progress)
        return _sum_up(folder, run, target, name, judge, now, kept)


def _copy(run: Path, folder: Folder) -> None:
    """Bring the copy up to date with the runs: make it, or add what it lacks."""
    source = find(run)
    if run.is_dir():
        for name in (CONFIG, "profiles"):
            _copy_once(run / name, folder.path / name)
    if not folder.trajectories.is_file():
        with replacing(folder.trajectories) as part:
            if source.suffix == ".jsonl":
                shutil.copyfile(source, part)
            else:
                write(part, read(source))
        return
    there = {trajectory.key: _content(trajectory) for trajectory in read(folder.trajectories)}
    missing = list[Trajectory]()
    for trajectory in read(source):
        known = there.pop(trajectory.key, None)
        if known is None:
            missing.append(trajectory)
        elif known != _content(trajectory):
            break
    else:
        if not there:
            write(folder.trajectories, missing)
            return
    raise StoreError(f"{folder.trajectories} holds other runs than {source}", hint="choose another --out, or remove it")


def _copy_once(source: Path, target: Path) -> None:
    if source.exists() and not target.exists():
        with replacing(target) as part:
            if source.is_dir():
                shutil.copytree(source, part)
            else:
                shutil.copyfile(source, part)


def _content(trajectory: Trajectory) -> bytes:
    """Identifies a run apart from its scores and notes."""
    bare = trajectory.model_copy(update={"scores": FrozenDict(), "meta": FrozenDict()})
    return hashlib.sha256(bare.to_json().encode()).digest()


async def _rescore(
    folder: Folder, scorer: Scorer, replace: bool, unscored: bool, at_once: int, progress: Progress
) -> tuple[int, int]:
    """The number of runs scored now, and the number of scores of that name that were kept."""
    settle(folder)
    journal = Journal(folder)
    now = kept = scored = right = 0
    with folder.trajectories.open("rb") as file:
        total = sum(1 for _ in file)
    began = time.monotonic()

    async def one(trajectory: Trajectory) -> None:
        done = await score_trajectory(trajectory, scorer)
        journal.score(done.key, {scorer.name: done.scores[scorer.name]})
        nonlocal scored, right
        scored, right = scored + 1, right + (done.scores[scorer.name].value == 1)
        pace = scored / max(time.monotonic() - began, 1e-9)
        note = [f"{right:,} right", f"{pace:.1f} answers/s", time_left((total - kept - scored) / pace)]
        progress.update(kept + scored, total, ", ".join(filter(None, note)))

    try:
        with part(progress, f"runs scored by {scorer.name}", total):
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


def _sum_up(
    folder: Folder, run: Path, out: Path, scorer: str, judging: Model | None, now: int, kept: int
) -> ScoreSummary:
    """Count the scores; if it is an evaluation, its report is made anew from them."""
    counts: Counter[str] = Counter()
    with AttemptStore() as attempts:
        for one in read(folder.trajectories):
            attempt = attempt_of(one, scorer)
            attempts.add(attempt)
            counts.update(right=attempt.right, failed=attempt.failed, unscored=attempt.unscored)
        agreement = summed_up(attempts, scorer=scorer).agreements()
        if warning := unscored_warning(attempts, scorer):
            log.warning("%s", warning)
        report = _report(folder, attempts, scorer, judging) if folder.is_evaluation else None
    return ScoreSummary(
        run=str(run),
        out=str(out),
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
