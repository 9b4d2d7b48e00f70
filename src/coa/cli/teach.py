"""`coa teach`: run a multi-agent team over a file of tasks and record everything it does."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coa.cli import options
from coa.cli.configuring import accepting, misused
from coa.cli.output import echo, echo_json
from coa.report import plural

if TYPE_CHECKING:
    from coa.distill.teaching.results import TeachReport

_MOVED = ("--api-key-env", "--price-in", "--price-cached", "--price-out", "--prices")
Command = accepting({flag: options.RUN_FLAGS[flag] for flag in _MOVED} | {"--max-tokens": "max_tokens"})
_TEAM = "smolagents team: module:factory or file.py:factory, where factory(model) returns an agent; or world."
_COMMAND = "Program that runs any other team, once per task; {question}, {id} and {file} stand for the task."
_world = partial(typer.Option, rich_help_panel="Team of an offline world")
_limits = partial(typer.Option, rich_help_panel="Limits")


def teach(
    tasks: Annotated[
        Path | None, typer.Argument(help="Required: tasks, .jsonl, .json or .parquet with `question`.")
    ] = None,
    team: Annotated[str | None, typer.Option(help=_TEAM)] = None,
    command: Annotated[str | None, typer.Option(help=_COMMAND)] = None,
    answer_field: Annotated[
        str | None, typer.Option(help="Field with the answer in the JSON object that the program prints.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="URL of the model server for the team.")] = None,
    model_name: options.ModelName = None,
    temperature: options.Temperature = None,
    world: Annotated[str | None, _world(help="World: atlas, atlas:SEED, or a folder of coa world build.")] = None,
    seed: Annotated[int | None, _world(min=0, help="Seed of the scripted expert's errors. Default: 0.")] = None,
    errors: Annotated[
        float | None, _world(min=0, max=1, help="Probability that the scripted expert errs. Default: 0.25.")
    ] = None,
    jobs: Annotated[int | None, _limits(min=1, help="Number of teams at a time, a process each. Default: 8.")] = None,
    time_limit: Annotated[float | None, _limits(min=0.1, help="Seconds for each task. Default: 1800.")] = None,
    limit: options.Limit = None,
    retry_failed: Annotated[bool, _limits("--retry-failed", help="Run failed and timed-out tasks again.")] = False,
    config: options.Config = None,
    settings: options.Set = None,
    show_settings: options.ShowSettings = False,
    dry_run: options.DryRun = False,
    out: Annotated[Path | None, typer.Option(help="Required: folder for the traces, one file for each task.")] = None,
    as_json: options.Json = False,
) -> None:
    """Run a team over tasks and record every agent, call and token. Resumes from --out."""
    from coa.cli.configuring import resolve
    from coa.cli.progress import terminal_progress
    from coa.cli.terminal import show_warnings
    from coa.distill import TeachConfig
    from coa.distill import teach as run

    show_warnings()
    given = {
        "team": team, "command": command, "answer_field": answer_field, "model": model, "model_name": model_name,
        "temperature": temperature, "world": world,
        "seed": seed, "errors": errors, "jobs": jobs, "time_limit_s": time_limit, "limit": limit,
        "retry_failed": retry_failed or None,
    }  # fmt: skip
    chosen = resolve(TeachConfig, config, settings, given, show_settings=show_settings, dry_run=dry_run)
    if tasks is None or out is None:
        raise misused("name the tasks, and a folder for the traces with --out: coa teach tasks.jsonl --out traces/")
    try:
        report = run(chosen, tasks, out, progress=terminal_progress())
    except KeyboardInterrupt:
        echo(f"interrupted; finished runs are in {out}, the same command goes on from there", err=True)
        raise typer.Exit(1) from None
    _print_json(report) if as_json else _show(report)
    if not report.complete:
        raise typer.Exit(1)


def _print_json(report: TeachReport) -> None:
    import orjson

    counts = {name: getattr(report, name) for name in ("total", "resumed", "answered", "failed", "refused")}
    spent = report.usage.model_dump(mode="json") | {"cost": report.cost}
    echo_json(orjson.dumps({**counts, "cut": report.timed_out, "usage": spent, "seconds": report.seconds}).decode())


def _show(report: TeachReport) -> None:

    used = report.usage
    echo(f"{report.done}/{report.total} done, {report.note()}")
    # What a program does with its tools is not seen at its model server.
    tools = f", {plural(used.tool_calls, 'tool call')}" if used.tool_calls else ""
    echo(f"spent now: {used.prompt_tokens:,} tokens read, {used.completion_tokens:,} written{tools}")
    echo(f"kept in {report.out}")
    for problem, count in sorted(report.problems.items(), key=lambda item: -item[1])[:5]:
        echo(f"  {count} x {problem[:300]}", err=True)
    if report.failed or report.timed_out:
        echo(f"what the failed ones printed is in {report.out / '.log'}", err=True)
        echo("the same command with --retry-failed runs the failed and timed-out ones again", err=True)
