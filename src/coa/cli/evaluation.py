"""What `coa eval` does once its options are read: for each benchmark, open, run, score, report."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import typer

from coa.cli.asking import came_to_its_end
from coa.cli.models import open_model
from coa.cli.progress import shown
from coa.cli.setting import Asked, limits_of, prompting
from coa.cli.world import profile_of, world_hash
from coa.errors import EvaluationError, ScoringError
from coa.evaluate.attempts import Attempt, attempt_of, grammars
from coa.evaluate.data import Loaded
from coa.evaluate.folder import Folder, folders_in, settle
from coa.evaluate.report import code_version, make_report, write_report
from coa.evaluate.run import Plan, Standing
from coa.evaluate.run import evaluate as run_evaluation
from coa.evaluate.summary import metric_of
from coa.models.base import Model, Sampling
from coa.models.connect import Mode
from coa.runtime import Select, Setting
from coa.scoring import PROMPT_HASH, Scorer, VerdictCache, scorer_for
from coa.tools.base import veiled
from coa.trajectory import Limits, Profile, load_profile, read

Show = Callable[[dict[str, Any], Folder, bool], None]
"""Told of each report when it is made: the report, its folder, and whether it covers everything."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """How to evaluate, where the command line says so; else the benchmark's protocol decides."""

    samples: int | None
    select: Select | None
    ks: tuple[int, ...]
    limit: int | None
    scorer: str | None
    judge: tuple[str | None, str | None, str]
    profile: str | None
    sampling: tuple[float | None, float | None, int | None, int]
    budget: tuple[str, ...]
    prompt: tuple[str, Path | None]
    concurrency: int
    retry_failed: bool


def folders_for(out: Path, loaded: Sequence[Loaded]) -> list[Folder]:
    """One benchmark is in the folder itself, several each in one of its own inside it."""
    names = [item.benchmark.name for item in loaded]
    alone, inside = Folder(out).is_evaluation, [part for part in folders_in(out) if part != out]
    if len(loaded) == 1:
        if not alone and any(Folder(part).is_evaluation for part in inside):
            raise EvaluationError(
                f"{out} holds several evaluations, each in a folder of its own", hint=f"--out {out / names[0]}"
            )
        return [Folder(out)]
    if alone:
        raise EvaluationError(f"{out} holds the evaluation of one benchmark", hint="give another --out")
    if len(set(names)) < len(names):
        raise typer.BadParameter("a benchmark is named twice; -n makes several attempts")
    return [Folder(out / name) for name in names]


async def evaluate_all(
    loaded: Sequence[Loaded], folders: Sequence[Folder], asked: Asked, wishes: Wishes, show: Show | None
) -> tuple[list[dict[str, Any]], bool]:
    for item in loaded:  # all, before the first one costs anything
        _check(item, wishes)
    reports: list[dict[str, Any]] = []
    with ExitStack() as held:
        for folder in folders:  # all of them likewise
            held.enter_context(folder.held())
        for item, folder in zip(loaded, folders, strict=True):
            report, ended = await _evaluate(item, folder, asked, wishes)
            reports.append(report)
            if show is not None:
                show(report, folder, ended)
            if not ended:
                return reports, False
    return reports, True


def _check(loaded: Loaded, wishes: Wishes) -> None:
    """Whether what was asked for can be had of this benchmark."""
    benchmark = loaded.benchmark
    samples = wishes.samples or benchmark.protocol.samples
    if beyond := [k for k in wishes.ks if k > samples]:
        raise EvaluationError(f"pass@{beyond[0]} needs {beyond[0]} attempts at each task", hint=f"add -n {beyond[0]}")
    if (wishes.scorer or benchmark.scorer) == "judge" and wishes.judge[0] is None:
        raise ScoringError(
            f"the answers of {benchmark.name} are compared by a judge",
            hint="add --judge URL, or --scorer auto for rules",
        )
    if wishes.select is Select.MAJORITY and any(task.tests is not None for task in loaded.tasks):
        raise EvaluationError(
            f"the answers of {benchmark.name} are programs, of which no two are alike: they cannot be voted on",
            hint="add --select self-check or --select judge",
        )


async def _evaluate(loaded: Loaded, folder: Folder, asked: Asked, wishes: Wishes) -> tuple[dict[str, Any], bool]:
    """The report, and whether it covers everything. Ctrl-C ends it; the same command goes on."""
    protocol = loaded.benchmark.protocol
    temperature, top_p, top_k, seed = wishes.sampling
    sampling = Sampling(
        protocol.temperature if temperature is None else temperature,
        protocol.top_p if top_p is None else top_p,
        protocol.top_k if top_k is None else top_k,
        seed=seed,
    )
    samples = wishes.samples or protocol.samples
    asked = asked if asked.world else replace(asked, world=loaded.benchmark.world)
    profile = load_profile(profile_of(asked.world, wishes.profile, loaded.benchmark.profile))
    limits = limits_of(profile, wishes.budget)
    told = prompting(*wishes.prompt, loaded.tasks, loaded.benchmark.name)
    asked.check_files(loaded.tasks, named_by_hand=False)
    async with AsyncExitStack() as stack:
        setting = await stack.enter_async_context(
            asked.opened(
                loaded.tasks, profile, sampling=sampling, limits=limits, prompt=told, at_once=wishes.concurrency
            )
        )
        name = wishes.scorer or loaded.benchmark.scorer
        judging = await _judge(stack, wishes)
        scorers = await _scorers(stack, folder, loaded, name, judging)
        config = _config(loaded, setting, asked, wishes, samples, scorers, judging, limits or profile.limits)
        folder.claim(config)
        plan = Plan(
            loaded,
            samples,
            scorers,
            select=wishes.select,
            judge=judging or setting.model,
            concurrency=wishes.concurrency,
            retry_failed=wishes.retry_failed,
        )
        standing, attempts = Standing(), list[Attempt]()

        async def work() -> None:
            async with shown(standing):
                attempts.extend(await run_evaluation(plan, setting, folder, standing))

        ended = await came_to_its_end(work())
    if not ended:
        attempts = _so_far(folder, plan, setting.profile)
    report = make_report(attempts, config, retried=folder.retried())
    write_report(folder, report)
    return report, ended


async def _judge(stack: AsyncExitStack, wishes: Wishes) -> Model | None:
    source, name, key_env = wishes.judge
    if source is None:
        return None
    judging = await open_model(source, name, mode=Mode.CHAT, api_key_env=key_env)
    stack.push_async_callback(judging.close)
    return judging


async def _scorers(
    stack: AsyncExitStack, folder: Folder, loaded: Loaded, name: str, judging: Model | None
) -> list[Scorer]:
    """The one that decides; beside a judge also exact match, which costs nothing and tells how far they agree."""
    judged = judging is not None and name in ("judge", "auto")
    verdicts = stack.enter_context(closing(VerdictCache(folder.path / "verdicts.sqlite"))) if judged else None
    scorers = [scorer_for(name, judge=judging, verdicts=verdicts)]
    if judged and any(task.answer for task in loaded.tasks):
        scorers.append(scorer_for("exact"))
    for scorer in scorers:
        stack.push_async_callback(scorer.close)
    return scorers


def _config(
    loaded: Loaded,
    setting: Setting,
    asked: Asked,
    wishes: Wishes,
    samples: int,
    scorers: Sequence[Scorer],
    judging: Model | None,
    limits: Limits,
) -> dict[str, Any]:
    """What the numbers are about: kept in the folder, repeated in the report."""
    benchmark = loaded.benchmark
    whose, file = wishes.prompt
    return {
        "stage": "eval",
        "benchmark": {
            "name": benchmark.name,
            "about": benchmark.about,
            "note": benchmark.note,
            "metric": metric_of(wishes.select, samples, benchmark.metric),
            "tasks": len(loaded.tasks),
            "published_size": benchmark.size,
            "files": list(loaded.files),
            "sha256": loaded.sha256,
            "groups": list(benchmark.groups),
        },
        "limit": wishes.limit,
        "samples": samples,
        "ks": list(wishes.ks),
        "scorer": scorers[0].name,
        "scorers_beside": [scorer.name for scorer in scorers[1:]],
        "select": wishes.select,
        "judge": None if judging is None else {"model": judging.name, "prompt_hash": PROMPT_HASH},
        "model": setting.model.name,
        "tokenizer": setting.model.tokenizer.fingerprint if setting.model.tokenizer is not None else None,
        "profile": {
            "name": setting.profile.name,
            "hash": hashlib.sha256(setting.profile.model_dump_json().encode()).hexdigest()[:16],
        },
        "prompt": whose if file is None else hashlib.sha256(file.read_bytes()).hexdigest()[:16],
        "sampling": {**asdict(setting.sampling), "seed_of_a_sample": "seed + its number"},
        "limits": limits.model_dump(mode="json"),
        "constrain": setting.constrain,
        "tools": {
            "names": sorted(setting.tools),
            "given": [veiled(item) for item in asked.tools],
            "world": None if asked.world is None else world_hash(asked.world),
            "mcp": [veiled(item) for item in asked.mcp],
            "cache": asked.cache,
        },
        "price": None if setting.price is None else setting.price.model_dump(mode="json"),
        "versions": code_version(),
    }


def _so_far(folder: Folder, plan: Plan, profile: Profile) -> list[Attempt]:
    """After Ctrl-C: what is finished and scored."""
    settle(folder)
    grammar = grammars(profile)
    wanted = {task.id for task in plan.loaded.tasks}
    runs = read(folder.trajectories) if folder.trajectories.is_file() else ()
    return [
        attempt_of(run, plan.scorer, grammar(run))
        for run in runs
        if run.task.id in wanted and run.sample < plan.samples and plan.scorer in run.scores
    ]
