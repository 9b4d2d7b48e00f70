"""`coa cost`: what a team spent, beside what its runs cost as one model's trajectories."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from coa.cli import options
from coa.cli.output import echo, echo_json
from coa.report import plural

if TYPE_CHECKING:
    from coa.distill.cost import Spending

_SHOWN: Final = 5
"""Number of unreadable places that are printed."""
_SPENT: Final = {
    "model_calls": "model calls", "tool_calls": "tool calls", "prompt_tokens": "prompt tokens",
    "completion_tokens": "completion tokens", "total_tokens": "total tokens", "sequence_tokens": "each token once",
}  # fmt: skip
_COUNTS: Final = "Counts the tokens of trajectories that were never run: smollm2, a folder, a hub id."


def cost(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Traces of teams and trajectories, files or folders. Shards of one evaluation are added up."
        ),
    ],
    tokenizer: Annotated[str, typer.Option(help=_COUNTS)] = "smollm2",
    profile: Annotated[
        str | None, typer.Option(help="Profile to read trajectories with, instead of the recorded one.")
    ] = None,
    tasks: Annotated[Path | None, typer.Option(help="Tasks with the right answers, for traces that have none.")] = None,
    judge: options.Judge = None,
    shared: Annotated[bool, typer.Option("--shared", help="Count only the tasks that all paths hold.")] = False,
    as_json: options.Json = False,
) -> None:
    """Report tokens, model calls and tool calls per task and per success."""
    from coa.cli.terminal import show_warnings
    from coa.distill.cost import measure_cost

    show_warnings()
    report = measure_cost(paths, tokenizer=tokenizer, profile=profile, tasks=tasks, judge=judge, shared=shared)
    for place in report.unreadable[:_SHOWN]:
        echo(f"unreadable: {place.file} {place.place}: {place.reason}", err=True)
    if len(report.unreadable) > _SHOWN:
        echo(f"... {len(report.unreadable):,} unreadable places in all, which are not in these sums", err=True)
    if as_json:
        echo_json(json.dumps([row.to_json() for row in report.rows], indent=2))
    else:
        _table(report.rows)


def _table(rows: Sequence[Spending]) -> None:
    """A block of sums, one per task and one per right answer, so that no label is wider than its figures allow."""
    from coa.cli.terminal import SafeConsole, SafeTable

    table = SafeTable()
    table.add_column("", no_wrap=True)
    for row in rows:
        table.add_column(f"{row.name} ({row.kind})", justify="right", overflow="fold")
    sums = [row.to_json() for row in rows]
    for name, label in (("runs", "runs"), ("tasks", "tasks"), ("successes", "right"), ("unscored", "unscored")):
        table.add_row(label, *(f"{row[name]:,}" for row in sums))
    for group, heading in (("per_task", "per task"), ("per_success", "per right answer")):
        table.add_row(heading)
        for name, label in _SPENT.items():
            table.add_row(f"  {label}", *(_number(row, group, name) for row in sums))
        if any(row["cost"] is not None for row in sums):
            table.add_row("  cost", *(_number(row, group, "cost", places=4) for row in sums))
    SafeConsole().print(table)
    for row in rows:
        if row.unmetered_calls:
            calls = plural(row.unmetered_calls, "model call was", "model calls were")
            echo(f"{row.name}: {calls} not metered; its tokens are a lower bound", err=True)
        if row.cost is not None and row.unpriced_runs:
            runs = plural(row.unpriced_runs, "run does", "runs do")
            echo(f"{row.name}: {runs} not say what they cost; the cost is a lower bound", err=True)


def _number(row: dict[str, object], group: str, name: str, *, places: int = 1) -> str:
    part = row[group]
    value = part[name] if isinstance(part, dict) else None
    return "-" if value is None else f"{value:,.{places}f}"
