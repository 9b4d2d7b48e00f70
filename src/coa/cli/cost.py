"""`coa cost`: what a team spent, beside what its runs cost as one model's trajectories."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from coa.report import plural

if TYPE_CHECKING:
    from coa.distill.cost import Spending
    from coa.distill.team_run import TeamRun
    from coa.trajectory import Trajectory

_NAMED: Final = 5
"""So many unreadable places are named."""


def cost(
    paths: Annotated[list[Path], typer.Argument(help="Traces of teams and trajectories, files or folders.")],
    tokenizer: Annotated[
        str, typer.Option(help="Counts the tokens of trajectories that were never run: smollm2, a folder, a hub id.")
    ] = "smollm2",
    profile: Annotated[str | None, typer.Option(help="Profile by name or .toml, where the data do not tell.")] = None,
    tasks: Annotated[
        Path | None, typer.Option(help="Task rows with the right answers, where traces have none.")
    ] = None,
    judge: Annotated[str | None, typer.Option(help="URL of a model that judges answers no rule can compare.")] = None,
    shared: Annotated[bool, typer.Option("--shared", help="Only tasks that all paths hold, for a fair pair.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Tokens, model calls and tool calls per task and per success."""
    from coa.cli.terminal import show_warnings

    show_warnings()
    rows = asyncio.run(_rows(paths, tokenizer, profile, tasks, judge, shared))
    if as_json:
        import json

        typer.echo(json.dumps([row.to_json() for row in rows], indent=2))
        return
    _table(rows)


async def _rows(
    paths: list[Path], tokenizer: str, profile: str | None, tasks: Path | None, judge: str | None, shared: bool
) -> list[Spending]:
    from coa.cli.models import open_model
    from coa.cli.terminal import printable
    from coa.cli.traces import read_anything
    from coa.distill.cost import spending
    from coa.distill.known_tasks import KnownTasks
    from coa.distill.team_run import Skipped
    from coa.errors import StoreError
    from coa.models.tokenizer import load_tokenizer
    from coa.scoring import scorer_for
    from coa.trajectory import load_profile
    from coa.trajectory.formats.tasks import read_tasks

    grammar, counts = load_profile(profile) if profile else None, load_tokenizer(tokenizer)
    known = KnownTasks(read_tasks(tasks) if tasks else ())
    unread: dict[tuple[str, str], str] = {}

    def items(path: Path) -> Iterator[TeamRun | Trajectory]:
        for item in read_anything([path]):
            if isinstance(item, Skipped):
                unread[item.file, item.place] = item.reason
            else:
                yield item.model_copy(update={"task": known.find(item.task)})

    wanted = set.intersection(*({item.task.id for item in items(path)} for path in paths)) if shared else None
    model = await open_model(judge) if judge else None
    scorer = scorer_for("auto", judge=model)
    rows: list[Spending] = []
    try:
        for path in paths:
            chosen = (item for item in items(path) if wanted is None or item.task.id in wanted)
            rows += await spending(str(path), chosen, scorer, grammar, counts)
    finally:
        await scorer.close()
        if model is not None:
            await model.close()
    for (file, place), reason in list(unread.items())[:_NAMED]:
        typer.echo(printable(f"unreadable: {file} {place}: {reason}"), err=True)
    if len(unread) > _NAMED:
        typer.echo(f"... {len(unread):,} unreadable places in all, which are not in these sums", err=True)
    if not rows:
        raise StoreError(
            "there is no run to count" + (" that all paths hold" if shared else ""),
            hint="give traces or trajectories; with --shared, paths that hold the same tasks",
        )
    return rows


def _table(rows: list[Spending]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(["", *(f"{row.name} ({row.kind})" for row in rows)]):
        table.add_column(column, justify="left" if number == 0 else "right", overflow="fold")
    told = [row.to_json() for row in rows]
    for name, label in (("runs", "runs"), ("tasks", "tasks"), ("successes", "right"), ("unscored", "unscored")):
        table.add_row(label, *(f"{row[name]:,}" for row in told))
    for group, of in (("per_task", "per task"), ("per_success", "per right answer")):
        for name in ("model_calls", "tool_calls", "prompt_tokens", "completion_tokens", "total_tokens"):
            table.add_row(f"{name.replace('_', ' ')} {of}", *(_number(row, group, name) for row in told))
        table.add_row(f"context, read once {of}", *(_number(row, group, "sequence_tokens") for row in told))
    Console(highlight=False).print(table)
    for row in rows:
        if row.unmetered_calls:
            calls = plural(row.unmetered_calls, "model call was", "model calls were")
            typer.echo(f"{row.name}: {calls} not metered; its tokens are a lower bound", err=True)


def _number(row: dict[str, object], group: str, name: str) -> str:
    sums = row[group]
    if not isinstance(sums, dict):
        return "-"
    value = float(sums[name])
    return "-" if name == "sequence_tokens" and not value else f"{value:,.1f}"
