"""A team run beside the trajectory that is made of it, with the reason for each rewriting: `coa distill --explain RUN`.

Nothing is written, and no text is filled in. The filters say what a distillation would say, but only of this run:
duplicates among several runs are not looked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath

from pydantic import JsonValue

from coa.blocking import run_blocking
from coa.distill.compose import Rewriting
from coa.distill.config import DistillConfig
from coa.distill.convert import convert_with_reasons
from coa.distill.filters import FILTERS
from coa.distill.filters.base import Dropped, FilterInput
from coa.distill.filters.quality import SCORE
from coa.distill.handovers import handovers_of
from coa.distill.importers.detect import read_traces
from coa.distill.known_tasks import KnownTasks
from coa.distill.report import as_typed
from coa.distill.roles import RoleMap, load_roles
from coa.distill.splice import Moment, MomentKind
from coa.distill.team_run import LeftOut, Skipped, Source, TeamRun
from coa.errors import StoreError
from coa.models.tokenizer import load_tokenizer
from coa.scoring import Scorer, score_trajectory
from coa.scoring.opening import open_judge, open_scorer
from coa.trajectory import Profile, Trajectory, load_profile, with_profile
from coa.trajectory.formats.tasks import read_tasks
from coa.trajectory.types import Frozen, Meta

_NAMED = 8
"""Number of runs that an error names."""


class ExplainedStep(Frozen):
    index: int
    agent: str
    text: str


class ExplainedRow(Frozen):
    """One thing that the team said or did, and what became of it."""

    agent: str
    """The member of the team."""
    kind: MomentKind
    said: str
    steps: tuple[ExplainedStep, ...]
    """Empty where it was left out."""
    why: tuple[str, ...]


class Explanation(Frozen):
    task: str
    question: str
    source: Source
    profile: str
    rows: tuple[ExplainedRow, ...]
    handovers: tuple[str, ...]
    """Who asked whom, and what came of it."""
    inferred: Meta
    """What the importer inferred, with notes; empty where the trace states it."""
    left_out: tuple[LeftOut, ...]
    """What the importer could not read."""
    dropped: str | None
    """Why a distillation drops the run, with stage and reason; None if it keeps it."""
    advice: str = ""
    """What to do about that."""


def explain(config: DistillConfig, traces: Sequence[str | Path], run: str) -> tuple[Explanation, ...]:
    """The runs whose task id or file is `run`; if there is none, those in which `run` is part of id, file or place."""
    return run_blocking(_explain(config, traces, run))


async def _explain(config: DistillConfig, traces: Sequence[str | Path], run: str) -> tuple[Explanation, ...]:
    profile = load_profile(config.profile)
    roles = load_roles(config.roles, profile)
    tasks = KnownTasks(read_tasks(config.tasks) if config.tasks else ())
    tokenizer = load_tokenizer(config.student) if config.student else None
    given = FilterInput(profile, config, tokenizer)
    found = []
    async with open_judge(config) as judge, open_scorer("auto", judge) as scorer:
        for item in _chosen(read_traces(traces), run, tasks):
            found.append(await _one(item, profile, roles, given, scorer, as_typed(traces)))
    return tuple(found)


def _chosen(items: Iterable[TeamRun | Trajectory | Skipped], run: str, tasks: KnownTasks) -> list[TeamRun | Trajectory]:
    exact, similar, names, skipped = list[TeamRun | Trajectory](), list[TeamRun | Trajectory](), list[str](), []
    for item in items:
        if isinstance(item, Skipped):
            if run in (item.file, PurePath(item.file).name):
                skipped.append(item)
            continue
        known = item.model_copy(update={"task": tasks.find(item.task)})
        source = _source(item)
        ids = (item.task.id, known.task.id, source.file, PurePath(source.file).name, PurePath(source.file).stem)
        if run in ids:
            exact.append(known)
        elif any(run in text for text in (*ids, source.place)):
            similar.append(known)
        if len(names) < _NAMED:
            names.append(item.task.id)
    if skipped and not (exact or similar):
        raise StoreError(f"{skipped[0].file} {skipped[0].place} cannot be read: {skipped[0].reason}".replace("  ", " "))
    if not (exact or similar):
        hint = f"tasks in the traces are {', '.join(names)}" if names else "the traces hold no run that can be read"
        raise StoreError(f"no run has the task id or file {run!r}", hint=hint)
    return exact or similar


def _source(item: TeamRun | Trajectory) -> Source:
    if isinstance(item, TeamRun):
        return item.source
    source = item.meta.get("source")
    kept = {key: str(source[key]) for key in ("file", "place") if source.get(key)} if isinstance(source, dict) else {}
    return Source(format="trajectory", **kept)


async def _one(
    item: TeamRun | Trajectory, profile: Profile, roles: RoleMap, given: FilterInput, scorer: Scorer, traces: str
) -> Explanation:
    handovers: tuple[str, ...] = ()
    inferred: dict[str, JsonValue] = {}
    left_out: tuple[LeftOut, ...] = ()
    if isinstance(item, TeamRun):
        made = convert_with_reasons(item, profile, roles)
        trajectory = made.trajectory
        # A thought that was lent and became no step is nothing that the team said.
        rows = [_row(one, trajectory) for one in made.rewritings if one.steps or not one.moment.lent]
        handovers, left_out = tuple(str(one) for one in handovers_of(item.root)), item.left_out
        known = item.meta.get("inferred")
        inferred = dict(known) if isinstance(known, dict) else {}
    else:
        trajectory = with_profile(item, profile)
        rows = [
            ExplainedRow(
                agent=step.agent, kind=MomentKind.THOUGHT, said="", why=("it was a trajectory already",),
                steps=(ExplainedStep(index=index, agent=step.agent, text=step.text),),
            )
            for index, step in enumerate(trajectory.steps)
        ]  # fmt: skip
    dropped, advice = await _verdict(trajectory, given, scorer, traces)
    return Explanation(
        task=item.task.id, question=item.task.question, source=_source(item), profile=profile.name, rows=tuple(rows),
        handovers=handovers, inferred=inferred, left_out=left_out, dropped=dropped, advice=advice,
    )  # fmt: skip


def _row(one: Rewriting, trajectory: Trajectory) -> ExplainedRow:
    steps = (
        ExplainedStep(index=index, agent=trajectory.steps[index].agent, text=trajectory.steps[index].text)
        for index in one.steps
    )
    return ExplainedRow(
        agent=one.moment.by, kind=one.moment.kind, said=_said(one.moment), steps=tuple(steps), why=one.reasons
    )


def _said(moment: Moment) -> str:
    if not moment.tool:
        return moment.text
    if set(moment.arguments) == {"code"}:
        return f"{moment.tool}:\n{moment.arguments['code']}"
    arguments = json.dumps(dict(moment.arguments), ensure_ascii=False) if moment.arguments else moment.text
    return f"{moment.tool} {arguments}".strip()


async def _verdict(trajectory: Trajectory, given: FilterInput, scorer: Scorer, traces: str) -> tuple[str | None, str]:
    """Why a distillation would drop it, and what to do about that."""
    judged = False
    for each in FILTERS:
        if each.needs_score and not judged:
            trajectory, judged = await score_trajectory(trajectory, scorer, name=SCORE), True
        said = each(trajectory, given)
        if isinstance(said, Dropped):
            return f"{each.stage.name}: {said.reason.name}: {said.detail}", said.reason.advice(traces)
        trajectory = said or trajectory
    return None, ""
