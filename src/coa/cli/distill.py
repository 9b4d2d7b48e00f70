"""`coa distill`: traces of any team in, training data and a funnel report out."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coa.report import plural

if TYPE_CHECKING:
    from coa.distill.report import DistillReport

_data = partial(typer.Option, rich_help_panel="Data")
_models = partial(typer.Option, rich_help_panel="Models")
_settings = partial(typer.Option, rich_help_panel="Settings")
_SET_HELP = "One setting as key=value or table.key=value, such as reflection.kept_without=1. Repeatable."
_KEEP_OUT_HELP = "Questions to keep out: a file of tasks, or a benchmark (coa eval list). Repeatable."


def distill(
    traces: Annotated[list[Path], typer.Argument(help="Traces of any known format, files or folders.")],
    out: Annotated[Path, typer.Option(help="Folder for trajectories, dataset card and report.")],
    profile: Annotated[str | None, typer.Option(help="Profile by name or .toml; web if not given.")] = None,
    tasks: Annotated[Path | None, _data(help="Tasks with the right answers, for traces that have none.")] = None,
    roles: Annotated[Path | None, _data(help="TOML: the team's agents and tools as agents of the profile.")] = None,
    decontaminate: Annotated[list[str] | None, _data(help=_KEEP_OUT_HELP)] = None,
    keep_unscored: Annotated[bool, _data("--keep-unscored", help="Keep answers nobody could judge.")] = False,
    judge: Annotated[str | None, _models(help="URL of a model that judges answers no rule can compare.")] = None,
    judge_name: Annotated[str | None, _models(help="Which model of the judge's server.")] = None,
    fill: Annotated[str | None, _models(help="Model that writes role texts the traces lack.")] = None,
    fill_name: Annotated[str | None, _models(help="Which model of the --fill server.")] = None,
    student: Annotated[str | None, _models(help="Tokenizer that measures length: a folder, a hub id, smollm2.")] = None,
    concurrency: Annotated[
        int | None,
        _models("--concurrency", "--at-once", min=1, help="Requests to judge and --fill model at a time; 32."),
    ] = None,
    config: Annotated[Path | None, _settings(help="TOML with any of the settings.")] = None,
    setting: Annotated[list[str] | None, _settings("--set", help=_SET_HELP)] = None,
    seed: Annotated[int | None, _settings(help="Decides which trajectories stay where a filter keeps a share.")] = None,
    dry_run: Annotated[bool, _settings("--dry-run", help="Print the resolved settings and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON, nothing else.")] = False,
) -> None:
    """Import, convert and filter; leaves trajectories, a dataset card and report.html in --out."""
    from coa.cli.progress import terminal_progress
    from coa.cli.terminal import show_warnings
    from coa.config import load_config
    from coa.distill.config import DistillConfig
    from coa.errors import CoaError

    show_warnings()
    given: dict[str, object] = dict(
        profile=profile, tasks=tasks, roles=roles, judge=judge, judge_name=judge_name, fill=fill
    )
    given |= dict(fill_name=fill_name, student=student, seed=seed, concurrency=concurrency)
    given |= {"decontaminate": decontaminate or None, "quality.unscored": "keep" if keep_unscored else None}
    hint = f"the keys and tables are {', '.join(DistillConfig.model_fields)}"
    settings = load_config(DistillConfig, config, setting or (), hint=hint, given=given)
    if dry_run:
        typer.echo(settings.model_dump_json(indent=2))
        return
    from coa.distill import distill as run

    report = run(settings, traces, out, progress=terminal_progress())
    if as_json:
        typer.echo(report.json.read_text(encoding="utf-8"), nl=False)
    else:
        _show(report)
    if not report.kept:
        raise CoaError("nothing was kept", hint=report.advice)


def _show(report: DistillReport) -> None:
    from rich.console import Console
    from rich.table import Table

    from coa.cli.terminal import printable

    table = Table(box=None, pad_edge=False)
    table.add_column("stage")
    for column in ("in", "kept", "dropped"):
        table.add_column(column, justify="right")
    table.add_column("why", overflow="fold")
    for stage in report.stages:
        why = ", ".join(f"{count:,} {reason}" for reason, count in stage.reasons.items())
        table.add_row(stage.name, f"{stage.entered:,}", f"{stage.kept:,}", f"{stage.dropped:,}", why)
    Console(highlight=False).print(table)
    for place in report.unreadable_places[:5]:
        typer.echo(printable(f"unreadable: {place.file} {place.place}: {place.reason}"), err=True)
    if report.unreadable > 5:
        typer.echo(f"... {report.unreadable:,} unreadable places in all; report.json names them", err=True)
    copies = f" in {plural(report.rows, 'row')}" if report.rows != report.kept else ""
    kept = plural(report.kept, "trajectory", "trajectories")
    typer.echo(f"{kept}{copies} in {report.out}; the funnel with examples: {report.html}")
