"""`coa sample`: keep the tasks that RL can learn from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coa.cli import options
from coa.cli.configuring import accepting, misused
from coa.cli.output import echo, echo_json
from coa.report import plural

if TYPE_CHECKING:
    from coa.sampling import SampleReport

_RULES = "Which tasks are kept"
Command = accepting(
    {flag: f"run.{key}" for flag, key in options.RUN_FLAGS.items()}
    | {"--judge-name": "judge_name", "--judge-key-env": "judge_key_env", "--no-tools-name": "no_tools_name",
       "--no-tools-key-env": "no_tools_key_env", "--enough": "early_stop=true", "--solved-at": "solved_at",
       "--temperature": "run.temperature"}
)  # fmt: skip


def sample(
    tasks: Annotated[
        str | None, typer.Argument(help="Tasks: a file, a folder, or a hub id such as owner/name:part.")
    ] = None,
    model: options.Model = None,
    model_name: options.ModelName = None,
    profile: options.Profile = None,
    world: options.World = None,
    tool: options.Tool = None,
    mcp: options.Mcp = None,
    seed: options.Seed = None,
    budget: options.Budget = None,
    samples: Annotated[
        int | None,
        typer.Option("--samples", "-n", min=1, help="Number of attempts at each task with tools.",
                     rich_help_panel=options.ATTEMPTS),
    ] = None,
    no_tools_samples: Annotated[
        int | None,
        typer.Option(min=0, help="Number of attempts without tools; 0 skips them. Default: as many as with tools.",
                     rich_help_panel=options.ATTEMPTS),
    ] = None,
    no_tools_model: Annotated[
        str | None,
        typer.Option(help="Model to ask without tools. Default: the model itself.", rich_help_panel=options.ATTEMPTS),
    ] = None,
    early_stop: Annotated[
        bool | None,
        typer.Option("--early-stop", help="Stop sampling a task as soon as its outcome is certain.",
                     rich_help_panel=options.ATTEMPTS),
    ] = None,
    concurrency: options.Concurrency = None,
    limit: options.Limit = None,
    shard: options.Shard = None,
    ray: options.Ray = None,
    ray_actors: options.RayActors = None,
    retry_failed: options.RetryFailed = None,
    max_without_tools: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Drop tasks that are solved without tools more often than this.",
                     rich_help_panel=_RULES),
    ] = None,
    keep_unsolved: Annotated[
        bool | None,
        typer.Option("--keep-unsolved", help="Keep tasks that no attempt solved.", rich_help_panel=_RULES),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(help="Fine-tuning data whose questions to drop: file, folder or hub id. Repeatable.",
                     rich_help_panel=_RULES),
    ] = None,
    scorer: Annotated[
        str | None,
        typer.Option(help="Scorer: auto, exact, math, code, judge, module:function, ...",
                     rich_help_panel=options.SCORING),
    ] = None,
    judge: options.Judge = None,
    config: options.Config = None,
    settings: options.Set = None,
    show_settings: options.ShowSettings = False,
    dry_run: options.DryRun = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Required: file for the kept tasks, .jsonl, .json or .parquet. Attempts are kept beside it.",
                     rich_help_panel=options.OUTPUT),
    ] = None,
    as_json: options.Json = False,
) -> None:  # fmt: skip
    """Keep the tasks that RL can learn from, by their pass rates with and without tools."""
    from coa.cli.configuring import resolve, run_flags
    from coa.cli.progress import terminal_progress
    from coa.cli.terminal import show_warnings
    from coa.errors import CoaError
    from coa.sampling import SampleConfig
    from coa.sampling import sample as sample_tasks
    from coa.sampling.report import folder_beside, hint

    show_warnings()
    given = {
        **run_flags("run.", model=model, model_name=model_name, profile=profile, world=world, tool=tool, mcp=mcp,
                    seed=seed, budget=budget, concurrency=concurrency),
        "tasks": tasks, "samples": samples, "no_tools_samples": no_tools_samples, "no_tools_model": no_tools_model,
        "early_stop": early_stop, "limit": limit, "shard": shard, "ray": ray, "ray_actors": ray_actors,
        "retry_failed": retry_failed,
        "max_without_tools": max_without_tools, "keep_unsolved": keep_unsolved,
        "exclude": tuple(exclude) if exclude else None, "scorer": scorer, "judge": judge,
    }  # fmt: skip
    chosen = resolve(SampleConfig, config, settings, given, show_settings=show_settings, dry_run=dry_run)
    if out is None:
        raise misused("the kept tasks need a file: add --out tasks.jsonl")
    try:
        found = sample_tasks(chosen, out, progress=terminal_progress())
    except KeyboardInterrupt:
        echo(f"interrupted; the same command goes on from what is in {folder_beside(out)}", err=True)
        raise typer.Exit(1) from None
    if as_json:
        echo_json((found.folder / "report.json").read_text(encoding="utf-8"), nl=False)
    else:
        _show(found)
    if not found.kept and found.tasks:
        raise CoaError("no task was kept", hint=hint(found.data))


def _show(found: SampleReport) -> None:
    from coa.cli.display import spent

    data, rules = found.data, found.data["rules"]
    for name, samples in (("without_tools", rules["no_tools_samples"]), ("with_tools", rules["samples"])):
        if samples:
            echo(f"tasks by attempts solved {name.replace('_', ' ')}")
            _bars(data[f"solved_{name}"], samples)
    echo(f"kept {data['kept']:,} of {plural(data['tasks'], 'task')}")
    for fate, count in data["dropped"].items():
        example = next(item for item in found.tasks if item.fate == fate)
        echo(f"dropped {count:,} {fate}, such as {example.task.id}: {example.reason}")
    if data["unscored_attempts"]:
        echo(
            f"{data['unscored_attempts']:,} of {plural(data['attempts'], 'attempt')} could not be scored; "
            "they count neither as solved nor as failed"
        )
    echo(f"spent on all attempts: {spent(found.usage)}")
    where = f"{plural(found.kept, 'task')} in {found.out}; " if found.kept else ""
    echo(f"{where}attempts, reasons and report: {found.folder / 'report.html'}")


def _bars(counts: Sequence[int], samples: int, width: int = 40) -> None:
    most = max(counts) or 1
    for solved, count in enumerate(counts):
        bar = "█" * max(round(width * count / most), int(count > 0))
        echo(f"  {solved:>3} of {samples}  {bar:<{width}} {count:>6,}".rstrip())
