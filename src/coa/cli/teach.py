"""`coa teach`: run a multi-agent team over a file of tasks and record everything it does."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coa.report import plural

if TYPE_CHECKING:
    from coa.distill.teaching.stage import TeachReport

_model = partial(typer.Option, rich_help_panel="Model")
_world = partial(typer.Option, rich_help_panel="Team of an offline world")
_limits = partial(typer.Option, rich_help_panel="Limits")
_prices = partial(typer.Option, rich_help_panel="Prices")
_settings = partial(typer.Option, rich_help_panel="Settings")


def teach(
    tasks: Annotated[Path, typer.Argument(help="Tasks: .jsonl, .json or .parquet with `question`.")],
    out: Annotated[Path, typer.Option(help="Folder for the traces, one ATIF file for each task.")],
    team: Annotated[
        str | None,
        typer.Option(help="module:factory or file.py:factory, where factory(model) returns an agent; or world."),
    ] = None,
    model: Annotated[str | None, _model(help="URL of an OpenAI-compatible server for the team.")] = None,
    model_name: Annotated[str | None, _model(help="Which of the server's models.")] = None,
    api_key_env: Annotated[str | None, _model(help="Variable that holds the key; COA_API_KEY if not given.")] = None,
    temperature: Annotated[float | None, _model(min=0, help="The server's default if not given.")] = None,
    max_tokens: Annotated[int | None, _model(min=1, help="Maximum number of tokens of each model call.")] = None,
    world: Annotated[str | None, _world(help="World: atlas, atlas:SEED, or a folder of coa world build.")] = None,
    seed: Annotated[int | None, _world(min=0, help="Decides where the scripted expert errs; 0.")] = None,
    errors: Annotated[
        float | None, _world(min=0, max=1, help="How often the scripted expert errs where it can; 0.25.")
    ] = None,
    jobs: Annotated[int | None, _limits(min=1, help="Teams that run at once, a process each; 8.")] = None,
    time_limit: Annotated[float | None, _limits(min=0.1, help="Seconds for each task; 1800.")] = None,
    limit: Annotated[int | None, _limits(min=1, help="Run only the first N tasks.")] = None,
    retry_failed: Annotated[bool, _limits("--retry-failed", help="Run failed and timed-out tasks again.")] = False,
    price_in: Annotated[float | None, _prices(min=0, help="Price per million input tokens.")] = None,
    price_cached: Annotated[float | None, _prices(min=0, help="Price per million cached input tokens.")] = None,
    price_out: Annotated[float | None, _prices(min=0, help="Price per million output tokens.")] = None,
    prices: Annotated[Path | None, _prices(help="Prices of several models, a .toml file.")] = None,
    config: Annotated[Path | None, _settings(help="TOML with any of the settings.")] = None,
    setting: Annotated[list[str] | None, _settings("--set", help="One setting as key=value. Repeatable.")] = None,
    dry_run: Annotated[bool, _settings("--dry-run", help="Print the resolved settings and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as JSON.")] = False,
) -> None:
    """Run a smolagents team over tasks and record every agent, call and token as ATIF. Resumes by default."""
    from coa.cli.progress import terminal_progress
    from coa.cli.terminal import show_warnings
    from coa.config import load_config
    from coa.distill import TeachConfig
    from coa.distill import teach as run

    show_warnings()
    given: dict[str, object] = dict(
        team=team, model=model, model_name=model_name, api_key_env=api_key_env, temperature=temperature
    )
    given |= dict(max_tokens=max_tokens, world=world, seed=seed, errors=errors, jobs=jobs, time_limit_s=time_limit)
    given |= {"limit": limit, "retry_failed": retry_failed or None, "prices": prices}
    given |= {"price.input": price_in, "price.cached": price_cached, "price.output": price_out}
    hint = f"name the team with --team; the keys are {', '.join(TeachConfig.model_fields)}"
    settings = load_config(TeachConfig, config, setting or (), hint=hint, given=given)
    if dry_run:
        typer.echo(settings.model_dump_json(indent=2))
        return
    try:
        report = run(settings, tasks, out, progress=terminal_progress())
    except KeyboardInterrupt:
        typer.echo(f"interrupted; finished runs are in {out}, the same command goes on from there", err=True)
        raise typer.Exit(1) from None
    _print_json(report) if as_json else _show(report)
    if not report.complete:
        raise typer.Exit(1)


def _print_json(report: TeachReport) -> None:
    import orjson

    counts = {name: getattr(report, name) for name in ("total", "resumed", "answered", "failed", "refused")}
    spent = report.usage.model_dump(mode="json") | {"cost": report.cost}
    typer.echo(orjson.dumps({**counts, "cut": report.timed_out, "usage": spent, "seconds": report.seconds}).decode())


def _show(report: TeachReport) -> None:
    from coa.cli.terminal import printable

    used = report.usage
    done = f"{report.done}/{report.total} done" + (f" ({report.resumed} before)" if report.resumed else "")
    named = (("answered", report.answered), ("failed", report.failed), ("refused", report.refused))
    parts = [done, *(f"{count} {name}" for name, count in (*named, ("timed out", report.timed_out)) if count)]
    parts.append(f"{used.total_tokens:,} tokens in {plural(used.model_calls, 'call')}")
    typer.echo(", ".join(parts if report.cost is None else [*parts, f"cost {report.cost:.4g}"]))
    typer.echo(
        f"spent now: {used.prompt_tokens:,} tokens read, {used.completion_tokens:,} written, "
        f"{plural(used.tool_calls, 'tool call')}"
    )
    typer.echo(f"kept in {report.out}")
    for problem, count in sorted(report.problems.items(), key=lambda item: -item[1])[:5]:
        typer.echo(f"  {count} x {printable(problem)[:300]}", err=True)
    if report.failed or report.timed_out:
        typer.echo("the same command with --retry-failed runs the failed and timed-out ones again", err=True)
