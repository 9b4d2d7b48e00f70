"""The stage `evaluate`: for each benchmark open what its runs need, run, score, report.

Everything is checked before the first benchmark costs anything. Whatever ends an evaluation, the same call on the same
folder goes on from there.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from coa.benchmarks.data import Loaded, load, samples_only
from coa.blocking import run_blocking
from coa.choices import Select
from coa.errors import ConfigError, EvaluationError, ScoringError
from coa.evaluate.attempts import Attempt, attempt_of, by_task, unscored_warning
from coa.evaluate.config import EvalConfig
from coa.evaluate.folder import Folder, folders_in, settle
from coa.evaluate.report import BenchmarkReport, Evaluation, code_version, make_report, write_report
from coa.evaluate.run import EvalProgress, Plan, evaluate_benchmark
from coa.evaluate.summary import metric_of
from coa.models.base import Model
from coa.progress import Progress, Silent
from coa.report import plural
from coa.runtime import RunConfig, Setting, open_setting
from coa.runtime.many import reported
from coa.runtime.on_ray import check_ray, on_ray
from coa.scoring import PROMPT_HASH, Scorer, check_scorer
from coa.scoring.opening import open_judge, open_scorer
from coa.tools import Tool
from coa.tools.base import veiled
from coa.tools.registry import check_tools
from coa.trajectory import read
from coa.worlds.folder import check_world, world_hash

log = logging.getLogger(__name__)


def evaluate(
    config: EvalConfig,
    out: str | Path,
    *,
    progress: Progress | None = None,
    model: Model | None = None,
    tools: Mapping[str, Tool] | None = None,
) -> Evaluation:
    """Evaluate a model on benchmarks or task files: success with intervals, tokens, tool calls, time and cost.

    Blocks. The same call resumes from what `out` holds.

    Args:
        config: Benchmarks, number of attempts, scorer, and how to run the agent.
        out: Folder for the runs and the reports.
        progress: Shows how far the work is.
        model: A model object that replaces the one in `config.run`.
        tools: Tool objects by their tag, besides those that `config.run` names.

    Returns:
        One report for each benchmark.

    Raises:
        CoaError: A setting is wrong, a benchmark's data are missing, or `out` belongs to another evaluation.
        KeyboardInterrupt: Ctrl-C was pressed. `read_evaluation` reads the report of the finished runs.
    """
    loaded = load_benchmarks(config)
    folders = _folders(Path(out), loaded)

    async def work() -> list[BenchmarkReport]:
        return [
            await _evaluate(item, folder, config, progress or Silent(), model, tools)
            for item, folder in zip(loaded, folders, strict=True)
        ]

    with ExitStack() as stack:
        for folder in folders:
            stack.enter_context(folder.held())
        return Evaluation(run_blocking(work()))


def load_benchmarks(config: EvalConfig) -> list[Loaded]:
    """The benchmarks with their tasks. Whatever would be refused is refused here, before a model is opened."""
    if not config.benchmarks:
        raise ConfigError("there is nothing to evaluate on", hint="name a benchmark (coa eval list) or a file of tasks")
    loaded = [
        load(name, config.data, limit=config.limit, tests=config.tests, shard=config.shard)
        for name in config.benchmarks
    ]
    if (
        config.tests is not None
        and config.shard is None
        and not any(task.tests for item in loaded for task in item.tasks)
    ):
        raise ConfigError("no task here has tests of a program", hint="leave --tests out")
    for item in loaded:
        _check(item, config)
    check_tools(config.run.tools)
    check_ray(config)
    check_world(config.run.world)
    return loaded


def read_evaluation(out: str | Path) -> Evaluation:
    """Read the reports of an evaluation from its folder. The evaluation need not be finished.

    Raises:
        CoaError: The folder holds no evaluation.
    """
    folders = [folder for path in folders_in(Path(out)) if (folder := Folder(path)).report.is_file()]
    if not folders:
        raise EvaluationError(f"{out} holds no report of an evaluation", hint="name the folder given as --out")
    return Evaluation([BenchmarkReport.read(folder) for folder in folders])


def _folders(out: Path, loaded: Sequence[Loaded]) -> list[Folder]:
    """One benchmark is in the folder itself, several each in a folder inside it."""
    names = [item.benchmark.name for item in loaded]
    alone, inside = Folder(out).is_evaluation, [part for part in folders_in(out) if part != out]
    if len(loaded) == 1:
        if not alone and any(Folder(part).is_evaluation for part in inside):
            raise EvaluationError(f"{out} holds evaluations of several benchmarks", hint=f"--out {out / names[0]}")
        return [Folder(out)]
    if alone:
        raise EvaluationError(f"{out} holds the evaluation of one benchmark", hint="give another --out")
    if len(set(names)) < len(names):
        raise ConfigError("a benchmark is named twice", hint="-n N makes several attempts at each task")
    return [Folder(out / name) for name in names]


def _check(loaded: Loaded, config: EvalConfig) -> None:
    """Whether this benchmark can be evaluated as the config says."""
    benchmark = loaded.benchmark
    samples = samples_of(loaded, config)
    if beyond := [k for k in config.pass_at if k > samples]:
        raise EvaluationError(f"pass@{beyond[0]} needs {beyond[0]} attempts at each task", hint=f"add -n {beyond[0]}")
    if (config.scorer or benchmark.scorer) == "judge" and config.judge is None:
        hint = "add --judge URL, or --scorer auto for rules"
        raise ScoringError(f"the answers of {benchmark.name} are compared by a judge", hint=hint)
    check_scorer(config.scorer or benchmark.scorer, judged=config.judge is not None)
    if config.selection is Select.MAJORITY and any(task.tests is not None for task in loaded.tasks):
        raise EvaluationError(
            f"the answers of {benchmark.name} are programs, of which no two are alike: they cannot be voted on",
            hint="add --select self-check or --select judge",
        )


def samples_of(loaded: Loaded, config: EvalConfig) -> int:
    return config.best_of or config.samples or loaded.benchmark.protocol.samples


def run_config_of(loaded: Loaded, run: RunConfig) -> RunConfig:
    """The config, with the benchmark's protocol for what it does not set."""
    protocol = loaded.benchmark.protocol
    sampling = {"temperature": protocol.temperature, "top_p": protocol.top_p, "top_k": protocol.top_k, "seed": 0}
    run = run.filled(world=loaded.benchmark.world, **sampling)
    return (run if run.world else run.filled(profile=loaded.benchmark.profile)).resolved()


async def _evaluate(
    loaded: Loaded, folder: Folder, config: EvalConfig, progress: Progress, model: Model | None,
    tools: Mapping[str, Tool] | None,
) -> BenchmarkReport:  # fmt: skip
    run = run_config_of(loaded, config.run)
    async with AsyncExitStack() as stack:
        setting = await stack.enter_async_context(
            open_setting(run, tasks=loaded.tasks, model=model, tools=tools, progress=progress)
        )
        setting = await stack.enter_async_context(
            on_ray(setting, config, run, tasks=loaded.tasks, objects=bool(model or tools), progress=progress)
        )
        judge = await stack.enter_async_context(open_judge(config))
        scorers = await _scorers(stack, folder, loaded, config.scorer or loaded.benchmark.scorer, judge)
        record = _record(loaded, setting, config, run, scorers, judge)
        folder.claim(record)
        chooser, retry = judge or setting.model, config.retry_failed
        plan = Plan(loaded, samples_of(loaded, config), scorers, config.selection, judge=chooser, retry_failed=retry)
        batch = EvalProgress()
        try:
            async with reported(batch, progress, loaded.benchmark.name):
                attempts = await evaluate_benchmark(plan, setting, folder, batch)
        except asyncio.CancelledError:
            _report(folder, _so_far(folder, plan), record)
            raise
    if batch.resumed and (model is not None or tools):
        log.warning(
            "%s of %s in %s were made before and not again, though the code of your objects may have changed",
            f"{batch.resumed:,}",
            plural(batch.total or 0, "run"),
            folder.path,
        )
    if warning := unscored_warning(by_task(attempts).items(), scorers[0].name):
        log.warning("%s", warning)
    if failed := next((attempt for attempt in attempts if attempt.failed), None):
        log.warning(
            "%s failed; the first is task %s: coa inspect %s --task %s",
            plural(sum(attempt.failed for attempt in attempts), "run"),
            failed.task,
            folder.path,
            failed.task,
        )
    return _report(folder, attempts, record)


def _report(folder: Folder, attempts: Sequence[Attempt], record: Mapping[str, Any]) -> BenchmarkReport:
    report = make_report(by_task(attempts).items(), record, retried=folder.retried())
    write_report(folder, report, {attempt.key for attempt in attempts})
    return BenchmarkReport(report, folder.path)


async def _scorers(
    stack: AsyncExitStack, folder: Folder, loaded: Loaded, name: str, judge: Model | None
) -> list[Scorer]:
    """The scorer that decides; beside a judge also exact match, which costs nothing and shows how far they agree."""
    judged = judge is not None and name in ("judge", "auto")
    verdicts = folder.path / "verdicts.sqlite" if judged else None
    scorers = [await stack.enter_async_context(open_scorer(name, judge, verdicts=verdicts))]
    if judged and any(task.answer for task in loaded.tasks):
        scorers.append(await stack.enter_async_context(open_scorer("exact")))
    return scorers


def _record(
    loaded: Loaded, setting: Setting, config: EvalConfig, run: RunConfig, scorers: Sequence[Scorer], judge: Model | None
) -> dict[str, Any]:
    """What the numbers are about: config.json of the folder, and the report's provenance."""
    benchmark, samples = loaded.benchmark, samples_of(loaded, config)
    file, limits = run.prompt_file, setting.limits or setting.profile.limits
    return {
        "stage": "eval",
        "benchmark": {
            "name": benchmark.name,
            "about": benchmark.about,
            "note": benchmark.note,
            "metric": metric_of(config.selection, samples, benchmark.metric),
            "tasks": len(loaded.tasks),
            "published_size": benchmark.size,
            "files": list(loaded.files),
            "sha256": loaded.sha256,
            "groups": list(benchmark.groups),
            "sample_tests_only": samples_only(loaded.tasks),
        },
        "limit": config.limit,
        "shard": None if config.shard is None else {"part": str(config.shard), "tasks_of_all": loaded.whole},
        "samples": samples,
        "ks": list(config.pass_at),
        "scorer": scorers[0].name,
        "scorers_beside": [scorer.name for scorer in scorers[1:]],
        "select": config.selection,
        "judge": None if judge is None else {"model": judge.name, "prompt_hash": PROMPT_HASH},
        "model": setting.model.name,
        "tokenizer": setting.model.tokenizer.fingerprint if setting.model.tokenizer is not None else None,
        "profile": {"name": setting.profile.name, "hash": setting.profile.hash},
        "prompt": run.prompt if file is None else hashlib.sha256(file.read_bytes()).hexdigest()[:16],
        "sampling": {**asdict(setting.sampling), "seed_of_a_sample": "seed + its number"},
        "limits": limits.model_dump(mode="json"),
        "constrain": setting.constrain,
        "tools": {
            "names": sorted(setting.tools),
            "given": [veiled(item) for item in run.tools],
            "world": None if run.world is None else world_hash(run.world),
            "mcp": [veiled(item) for item in run.mcp],
            "cache": run.cache,
        },
        "price": None if setting.price is None else setting.price.model_dump(mode="json"),
        "versions": code_version(),
    }


def _so_far(folder: Folder, plan: Plan) -> list[Attempt]:
    """After Ctrl-C: what is finished and scored."""
    settle(folder)
    wanted = {task.id for task in plan.loaded.tasks}
    runs = read(folder.trajectories) if folder.trajectories.is_file() else ()
    return [
        attempt_of(run, plan.scorer)
        for run in runs
        if run.task.id in wanted and run.sample < plan.samples and plan.scorer in run.scores
    ]
