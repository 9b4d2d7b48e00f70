"""`coa distill`: traces of any team in, training data and a funnel report out."""

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
    from coa.distill.config import DistillConfig
    from coa.distill.report import DistillReport

Command = accepting({"--judge-name": "judge_name", "--fill-name": "fill_name", "--at-once": "concurrency"})
_SHOWN = 5
"""Number of unreadable places that are printed."""
_models = partial(typer.Option, rich_help_panel="Models")
_KEEP_OUT = "Questions to keep out: a file of tasks, or a benchmark (coa eval list). Repeatable."
_ROLES = "TOML file that maps agents and tools of the team to those of the profile."
_SEED = "Decides which trajectories are kept where a filter keeps a share. Default: 0."
_EXPLAIN = (
    "Show one run beside its trajectory, with reasons: a task id, a file, or a part of either. Nothing is written."
)
_LENGTH = "Tokenizer that measures length: a folder, a hub id, smollm2."


def distill(
    traces: Annotated[
        list[Path] | None, typer.Argument(help="Required: traces of any known format, files or folders.")
    ] = None,
    profile: Annotated[str | None, typer.Option(help="Profile by name or .toml file. Default: web.")] = None,
    tasks: Annotated[Path | None, typer.Option(help="Tasks with the right answers, for traces that have none.")] = None,
    roles: Annotated[Path | None, typer.Option(help=_ROLES)] = None,
    decontaminate: Annotated[list[str] | None, typer.Option(help=_KEEP_OUT)] = None,
    keep_unscored: Annotated[
        bool, typer.Option("--keep-unscored", help="Keep runs whose answers nobody could judge.")
    ] = False,
    judge: options.Judge = None,
    fill: Annotated[str | None, _models(help="Model that writes role texts the traces lack.")] = None,
    student: Annotated[str | None, _models(help=_LENGTH)] = None,
    concurrency: Annotated[
        int | None, _models(min=1, help="Number of requests to the judge and the --fill model at a time.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help=_SEED)] = None,
    shard: options.Shard = None,
    explain: Annotated[str | None, typer.Option(metavar="RUN", help=_EXPLAIN)] = None,
    config: options.Config = None,
    settings: options.Set = None,
    show_settings: options.ShowSettings = False,
    dry_run: options.DryRunPlan = False,
    out: Annotated[
        Path | None, typer.Option(help="Required: folder for trajectories, dataset card and report.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Turn traces of multi-agent teams into filtered training data, with a dataset card and a funnel report."""
    from coa.cli.configuring import resolve
    from coa.cli.progress import terminal_progress
    from coa.cli.terminal import show_warnings
    from coa.distill.config import DistillConfig
    from coa.errors import CoaError

    show_warnings()
    given = {
        "profile": profile, "tasks": tasks, "roles": roles, "decontaminate": decontaminate or None, "judge": judge,
        "fill": fill, "student": student, "concurrency": concurrency, "seed": seed, "shard": shard,
        "quality.unscored": "keep" if keep_unscored else None,
    }  # fmt: skip
    from coa.distill import plan

    chosen = resolve(
        DistillConfig, config, settings, given, show_settings=show_settings, dry_run=dry_run, as_json=as_json,
        plan=lambda chosen: plan(chosen, traces or ()),
    )  # fmt: skip
    if explain is not None and traces:
        _explain(chosen, traces, explain, as_json=as_json)
        return
    if not traces or out is None:
        raise misused("name the traces, and a folder for the data with --out: coa distill traces/ --out data/")
    from coa.distill import distill as run

    report = run(chosen, traces, out, progress=terminal_progress())
    if as_json:
        echo_json(report.json.read_text(encoding="utf-8"), nl=False)
    else:
        _show(report)
    if not report.kept and (report.read or chosen.shard is None):
        raise CoaError("nothing was kept", hint=report.advice)


def _explain(config: DistillConfig, traces: list[Path], run: str, *, as_json: bool) -> None:
    from coa.distill import explain
    from coa.errors import StoreError

    found = explain(config, traces, run)
    if as_json:
        for one in found:
            echo_json(one.model_dump_json())
        return
    if len(found) > _SHOWN:
        names = ", ".join(dict.fromkeys(one.task for one in found[:_SHOWN]))
        raise StoreError(f"{len(found):,} runs match {run!r}", hint=f"name one of them: {names}, ...; or use --json")
    from coa.cli.explanations import show_explanation

    for one in found:
        show_explanation(one, config.profile)


def _show(report: DistillReport) -> None:
    from coa.cli.terminal import SafeConsole, SafeTable
    from coa.distill.report import copies_note

    table = SafeTable()
    for column in ("stage", "in", "kept", "dropped", "why"):
        named = column in ("stage", "why")
        table.add_column(column, justify="left" if named else "right", overflow="fold" if named else "ellipsis")
    for stage in report.stages:
        why = ", ".join(f"{count:,} {reason}" for reason, count in stage.reasons.items())
        table.add_row(stage.name, f"{stage.entered:,}", f"{stage.kept:,}", f"{stage.dropped:,}", why)
    SafeConsole().print(table)
    for place in report.unreadable_places[:_SHOWN]:
        echo(f"unreadable: {place.file} {place.place}: {place.reason}", err=True)
    if report.unreadable > _SHOWN:
        echo(f"... {report.unreadable:,} unreadable places in all; report.json names them", err=True)
    if report.failed_handovers:
        left = plural(report.failed_handovers, "hand-over that failed is", "hand-overs that failed are")
        echo(f"{left} left out; --explain RUN shows them", err=True)
    if report.sureness:
        echo(report.sureness, err=True)
    copies = f", {copies_note(report.rows)}" if report.rows != report.kept else ""
    echo(f"{plural(report.kept, 'trajectory', 'trajectories')} in {report.out}{copies}")
    echo(f"the funnel with examples: {report.html}")
