"""The stage: open what the attempts need, make them, and write the tasks that are worth RL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from coa.blocking import run_blocking
from coa.choices import Constrain
from coa.errors import ConfigError, StoreError
from coa.folder import lock
from coa.models.base import Model
from coa.models.opening import open_model
from coa.models.price import price_of
from coa.progress import Progress, Silent
from coa.runtime import RunConfig, Setting, open_setting
from coa.runtime.on_ray import check_ray, on_ray
from coa.sampling.attempts import Attempts
from coa.sampling.config import SampleConfig
from coa.sampling.outcomes import Sampled, agent_runs, closed_book_runs, sample_tasks
from coa.sampling.report import folder_beside, hold_settings, write_report, write_tasks
from coa.scoring.opening import open_judge, open_scorer
from coa.scoring.registry import check_scorer
from coa.shard import in_shard
from coa.tools import Tool
from coa.tools.registry import check_tools
from coa.trajectory import Task, Usage
from coa.trajectory.formats.detect import Content, detect, read_trajectories
from coa.trajectory.formats.rows import read_rows
from coa.trajectory.formats.sources import ENDINGS, files
from coa.trajectory.formats.tasks import question_in, read_tasks, tasks_of


@dataclass(frozen=True, slots=True)
class SampleReport:
    """Result of `sample`. `data` is the content of report.json."""

    tasks: tuple[Sampled, ...]
    kept: int
    usage: Usage
    """Usage of all attempts, including earlier ones."""
    out: Path
    """File with the kept tasks, each with its rates; it does not exist if none was kept."""
    folder: Path
    """Attempts, dropped tasks with their reasons, and the report."""
    data: Mapping[str, Any]


def sample(
    config: SampleConfig,
    out: str | Path,
    *,
    progress: Progress | None = None,
    model: Model | None = None,
    tools: Mapping[str, Tool] | None = None,
) -> SampleReport:
    """Estimate how often a model solves each task, with and without tools, and keep the tasks that RL can learn from.

    Blocks. Attempts are kept in a folder beside `out`, and the same call resumes from there.

    Args:
        config: Tasks, model, number of attempts and thresholds.
        out: File for the tasks that are kept.
        progress: Shows how far the work is.
        model: A model object that replaces the one in `config.run`.
        tools: Tool objects by their tag, besides those that `config.run` names.

    Returns:
        The rates of each task and the number of tasks kept.

    Raises:
        CoaError: A setting or the tasks are wrong, or `out` belongs to another run.
    """
    out = Path(out)
    if out.suffix not in ENDINGS:
        raise ConfigError(f"the kept tasks cannot be written to {out}", hint=f"--out ends with {', '.join(ENDINGS)}")
    if config.tasks is None:
        raise ConfigError("there are no tasks to sample", hint="name a file, a folder or a hub id of tasks")
    check_scorer(config.scorer, judged=config.judge is not None)  # before a model is opened
    check_tools(config.run.tools)
    check_ray(config)
    given = list(islice(read_tasks(config.tasks), config.limit))
    if not given:
        raise StoreError(f"{config.tasks} holds no task", hint="give a file with a row for each task")
    # Attempts are sampled as RL samples them, or the rates would be those of another policy.
    run = config.run.filled(temperature=1.0, top_p=1.0, top_k=0, constrain=Constrain.NEVER).resolved()
    with lock(folder_beside(out)):
        return run_blocking(
            _sample(config, run, in_shard(given, config.shard), out, progress or Silent(), model, tools)
        )


async def _sample(
    config: SampleConfig, run: RunConfig, tasks: list[Task], out: Path, progress: Progress, model: Model | None,
    tools: Mapping[str, Tool] | None,
) -> SampleReport:  # fmt: skip
    folder, rules = folder_beside(out), config.rules
    trained_on = [question for source in config.exclude for question in _questions_in(source)]
    async with AsyncExitStack() as stack:
        setting = await stack.enter_async_context(
            open_setting(run, tasks=tasks, model=model, tools=tools, progress=progress)
        )
        setting = await stack.enter_async_context(
            on_ray(
                setting, config, run, tasks=tasks, objects=bool(model or tools), progress=progress,
                key_variables=[config.no_tools_key_env],
            )
        )  # fmt: skip
        closed_book = await _closed_book(stack, config, run, setting)
        judge = await stack.enter_async_context(open_judge(config))
        settings = _record(config, run, setting, closed_book)
        hold_settings(folder, settings, rules)
        scorer = await stack.enter_async_context(open_scorer(config.scorer, judge, verdicts=folder / "verdicts.sqlite"))
        settings["scorer"] = judged_by = f"{config.scorer}, {judge.name}" if judge else config.scorer
        before, after = (
            Attempts(folder / name / "trajectories.jsonl", scorer, judged_by)
            for name in ("without-tools", "with-tools")
        )
        if config.retry_failed:
            before.retry_failed()
            after.retry_failed()
        without, with_tools = (closed_book_runs(closed_book), before), (agent_runs(setting), after)
        found = await sample_tasks(
            tasks, rules, without, with_tools, progress=progress, trained_on=trained_on, early_stop=config.early_stop
        )
    kept = write_tasks(out, found, model=settings["model"], no_tools_model=settings["no_tools_model"])
    data = write_report(folder, found, rules, settings)
    return SampleReport(tuple(found), kept, before.usage + after.usage, out, folder, data)


async def _closed_book(stack: AsyncExitStack, config: SampleConfig, run: RunConfig, setting: Setting) -> Setting:
    """The setting of the attempts without tools."""
    if config.no_tools_model is None:
        return setting
    model = await open_model(config.no_tools_model, config.no_tools_name, api_key_env=config.no_tools_key_env)
    stack.push_async_callback(model.close)
    price = run.price or (price_of(model.name, run.prices) if run.prices is not None else None)
    named = {"model": config.no_tools_model, "model_name": config.no_tools_name}
    only = {"api_key_env": config.no_tools_key_env, "tools": (), "mcp": (), "world": None}
    fleet = setting.fleet.with_config(run.model_copy(update=named | only)) if setting.fleet is not None else None
    return replace(setting, model=model, tools={}, price=price, fleet=fleet)


def _record(config: SampleConfig, run: RunConfig, setting: Setting, closed_book: Setting) -> dict[str, Any]:
    """What the rates depend on; a folder whose attempts were made with other settings is refused."""
    return {
        "shard": None if config.shard is None else str(config.shard),
        "profile": setting.profile.name,
        "tool": sorted(run.tools),
        "world": run.world,
        "prompt": run.prompt_file.read_text(encoding="utf-8") if run.prompt_file else run.prompt,
        "temperature": run.temperature,
        "top_p": run.top_p,
        "top_k": run.top_k,
        "seed": run.seed,
        "budget": sorted(f"{name}={value:g}" for name, value in run.limits.items() if value is not None),
        "constrain": run.constrain,
        "model": setting.model.name,
        "no_tools_model": closed_book.model.name,
        "tools": sorted(setting.tools),
    }


def _questions_in(source: str) -> Iterator[str]:
    """The questions of fine-tuning data, which RL must not ask again.

    The data may be trajectories, AFM's SFT rows or tasks: a file, a folder or a hub id.
    """
    for file in files(source):
        if detect(file) is Content.TASKS:
            yield from (task.question_in_context for task in tasks_of(read_rows(file), source=str(file)))
            continue
        for trajectory in read_trajectories(file):
            question = trajectory.task.question_in_context
            yield question
            # Some rows have the instructions and the question in one text.
            if (inside := question_in(question)) != question:
                yield inside
