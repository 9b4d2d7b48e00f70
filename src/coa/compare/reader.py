"""Reads runs of any origin (evaluations, traces of teams, files of trajectories) into scored attempts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from coa.benchmarks.data import load
from coa.compare.comparison import ComparedRun
from coa.distill.cost import count_team_tokens, written_by_team
from coa.distill.importers.detect import read_traces
from coa.distill.known_tasks import KnownTasks
from coa.distill.team_run import Skipped, TeamRun
from coa.errors import EvaluationError
from coa.evaluate.attempt_store import AttemptStore
from coa.evaluate.attempts import Attempt, attempt_of, short_meta
from coa.evaluate.folder import Folder, folders_in, read_notes
from coa.evaluate.report import deciding as scorer_of
from coa.evaluate.run import Scoring
from coa.models.base import Model
from coa.models.tokenizer import TextTokenizer, load_tokenizer
from coa.report import plural
from coa.runtime.sides import Side
from coa.scoring import Scorer, VerdictCache, score_trajectory, scorer_for, verdict_of
from coa.scoring.opening import JudgeConfig, open_judge
from coa.trajectory import Trajectory, load_profile, profile_of, with_profile
from coa.trajectory.counting import count_tokens

Item = TeamRun | Trajectory | Skipped


class RunReader:
    """Reads attempts that can be compared: scored alike, and with tokens counted alike if a tokenizer is given."""

    def __init__(
        self, *, tokenizer: str | None, tasks: str | None, scorer: str | None, judge: JudgeConfig | None,
        profile: str | None,
    ) -> None:  # fmt: skip
        self._stack = ExitStack()
        self._tokenizer: TextTokenizer | None = load_tokenizer(tokenizer) if tokenizer else None
        self._known = KnownTasks(load(tasks).tasks if tasks else ())
        self._asked, self._judge = scorer, judge or JudgeConfig()
        self._profile = load_profile(profile) if profile else None
        self._scorers: dict[str, Scorer] = {}
        self._judging: Model | None = None
        self._verdicts: VerdictCache | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Removes what was read."""
        self._stack.close()

    async def read_all(self, sides: Sequence[Side]) -> list[ComparedRun]:
        async with AsyncExitStack() as stack:
            self._verdicts = stack.enter_context(closing(VerdictCache()))
            self._judging = await stack.enter_async_context(open_judge(self._judge))
            default = self._asked or self._common_scorer([path for side in sides for path in side.paths])
            try:
                named = zip(sides, _names(sides), strict=True)
                return _with_scorers_noted([await self._read(side, name, default) for side, name in named])
            finally:
                for scorer in self._scorers.values():
                    await scorer.close()

    def _common_scorer(self, paths: Sequence[Path]) -> str:
        """The scorer of the evaluations among the runs, so that traces are scored like them."""
        for inside in [found for path in paths for found in folders_in(path)]:
            folder = Folder(inside)
            if inside.is_dir() and folder.is_evaluation:
                return scorer_of(folder.read_config())
        return "auto"

    async def _read(self, side: Side, name: str, default: str) -> ComparedRun:
        attempts = self._stack.enter_context(AttemptStore())
        skipped = unmetered = 0
        kinds: set[str] = set()
        deciding: set[str] = set()
        counts: dict[str, int] = {}

        def add(place: int, attempt: Attempt, before: str) -> None:
            nonlocal unmetered
            unmetered += attempt.unmetered_calls
            attempts.add(replace(attempt, task=before + attempt.task) if before else attempt, place)

        async def add_scored(place: int, item: Trajectory, scorer: str, before: str) -> None:
            scored = await score_trajectory(item, self._scorer(scorer), name=scorer)
            add(place, self._of_trajectory(scored, scorer), before)

        async def add_team(place: int, item: TeamRun, scorer: str, before: str) -> None:
            number = counts.get(item.task.id, 0)
            counts[item.task.id] = number + 1
            add(place, await self._of_team(item, scorer, number), before)

        async with Scoring(32) as work:
            for place, (item, scorer, before) in enumerate(self._items(side, default)):
                if isinstance(item, Skipped):
                    skipped += 1
                    continue
                deciding.add(scorer)
                kinds.add("team" if isinstance(item, TeamRun) else "model")
                if isinstance(item, TeamRun):
                    await work.add(add_team(place, item, scorer, before))
                elif scorer in item.scores:
                    add(place, self._of_trajectory(item, scorer), before)
                else:
                    await work.add(add_scored(place, item, scorer, before))
        if not len(attempts):
            raise EvaluationError(
                f"{side.paths[0]} holds no run", hint="give an evaluation, team traces, or trajectories"
            )
        notes = [f"{plural(skipped, 'place')} could not be read"] if skipped else []
        if again := attempts.doubles:
            doubles = "of a task and sample that came before"
            notes.append(f"{plural(again, f'run {doubles} is', f'runs {doubles} are')} left out")
        if missing := side.missing_note():
            notes.append(missing)
        if (planned := _planned(side)) > len(attempts):
            notes.append(f"not finished: {planned - len(attempts):,} of {planned:,} attempts are missing")
        if unmetered and self._tokenizer is None:
            notes.append(
                f"{plural(unmetered, 'model call was', 'model calls were')} not metered; its tokens are a lower bound"
            )
        if self._tokenizer is not None:
            notes.append("tokens counted with the tokenizer given, not as servers counted them")
        shards = tuple(map(str, side.paths)) if side.shards else ()
        kind, scorers = "+".join(sorted(kinds)), "+".join(sorted(deciding))
        return ComparedRun(name, str(side.paths[0]), attempts, kind, scorers, tuple(notes), shards)

    def _items(self, side: Side, default: str) -> Iterator[tuple[Item, str, str]]:
        """Runs, the scorer that decides, and the prefix of their ids if a folder holds several benchmarks."""
        for path in side.paths:
            yield from self._items_in(path, default)

    def _items_in(self, path: Path, default: str) -> Iterator[tuple[Item, str, str]]:
        inside = list(folders_in(path))
        for part in inside:
            folder = Folder(part)
            mine = part.is_dir() and folder.is_evaluation
            notes = read_notes(folder) if mine else None
            scorer = self._asked or (scorer_of(folder.read_config()) if mine else default)
            before = f"{part.name}/" if len(inside) > 1 else ""
            # From an evaluation only its runs are read: its other files (verdicts, runs set aside) are not traces.
            for item in read_traces([folder.trajectories if mine and folder.trajectories.is_file() else part]):
                if isinstance(item, Trajectory):
                    if item.meta.get("copy"):
                        continue  # a copy of a run, which gives it more weight in training
                    item = notes.applied(item) if notes else item
                yield self._known_task(item), scorer, before

    def _known_task(self, item: Item) -> Item:
        if isinstance(item, Skipped):
            return item
        if self._profile is not None and isinstance(item, Trajectory):
            item = with_profile(item, self._profile)
        task = self._known.find(item.task)
        return item if task is item.task else item.model_copy(update={"task": task})

    def _of_trajectory(self, item: Trajectory, scorer: str) -> Attempt:
        attempt = attempt_of(item, scorer)
        if self._tokenizer is None:
            return attempt
        counted = count_tokens(item, self._tokenizer, profile_of(item))
        kept = {name: getattr(counted.usage, name) for name in ("prompt_tokens", "completion_tokens")}
        calls = {
            name: getattr(item.usage, name) or getattr(counted.usage, name) for name in ("model_calls", "tool_calls")
        }
        usage = item.usage.model_copy(update={**kept, **calls, "cached_tokens": 0})
        return replace(attempt, usage=usage, written=counted.written, shared_out=False, sequence_tokens=counted.length)

    async def _of_team(self, item: TeamRun, scorer: str, number: int) -> Attempt:
        verdict = await verdict_of(self._scorer(scorer), item.task, item.answer)
        attempt = Attempt(
            task=item.task.id,
            sample=number,
            value=verdict.value,
            answer=item.answer,
            stop=item.stop,
            usage=item.usage,
            written=written_by_team(item),
            scores={scorer: verdict.value},
            meta=short_meta(item.task.meta),
            program=item.task.tests is not None,
            unmetered_calls=item.unmetered_calls,
        )
        if attempt.failed:
            attempt = replace(attempt, value=None)
        if self._tokenizer is None:
            return attempt
        counted = count_team_tokens(item, self._tokenizer)
        return replace(attempt, usage=counted.usage, written=counted.written, sequence_tokens=counted.length)

    def _scorer(self, name: str) -> Scorer:
        if name not in self._scorers:
            self._scorers[name] = scorer_for(name, judge=self._judging, verdicts=self._verdicts)
        return self._scorers[name]


def _with_scorers_noted(runs: list[ComparedRun]) -> list[ComparedRun]:
    """Add a note where different scorers decide: they may be what makes the runs differ."""
    scorers = sorted({run.scorer for run in runs})
    if len(scorers) < 2:
        return runs
    note = f"the runs are scored by {' and '.join(scorers)}; --scorer NAME scores all alike"
    return [replace(run, notes=(*run.notes, note)) for run in runs]


def _planned(side: Side) -> int:
    """Number of attempts that the evaluations of a run should have; 0 for runs of another origin."""
    configs: dict[str, dict[str, Any]] = {}
    for part in (part for path in side.paths for part in folders_in(path)):
        if part.is_dir() and Folder(part).is_evaluation:
            config = Folder(part).read_config()
            configs[config["benchmark"]["name"] if side.shards else str(part)] = config
    return sum(_tasks(config) * int(config["samples"]) for config in configs.values())


def _tasks(config: Mapping[str, Any]) -> int:
    """Number of tasks of an evaluation, of all its shards."""
    return int(shard["tasks_of_all"] if (shard := config.get("shard")) else config["benchmark"]["tasks"])


def _names(sides: Sequence[Side]) -> list[str]:
    short = [side.name for side in sides]
    return short if len(set(short)) == len(short) else [str(side.paths[0]) for side in sides]
