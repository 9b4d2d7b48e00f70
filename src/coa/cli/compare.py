"""`coa compare`: evaluations, team traces and files of trajectories beside each other, on the same tasks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from coa.cli import options
from coa.report import plural


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Evaluations, folders of coa teach, files of trajectories.")],
    out: Annotated[Path, typer.Option(help="Folder for report.json and report.html.")] = Path("comparison"),
    tokenizer: Annotated[
        str | None, typer.Option(help="Count all tokens anew with this one: smollm2, a folder, a hub id.")
    ] = None,
    tasks: Annotated[
        str | None, typer.Option(help="File or benchmark with the right answers, where traces have none.")
    ] = None,
    scorer: Annotated[str | None, typer.Option(help="Who decides; else the evaluations' own scorer, or auto.")] = None,
    judge: Annotated[str | None, typer.Option(help="URL of a model that judges answers no rule can compare.")] = None,
    judge_name: options.JudgeName = None,
    judge_key_env: options.JudgeKeyEnv = "COA_API_KEY",
    profile: Annotated[str | None, typer.Option(help="Profile by name or .toml, where the data do not tell.")] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Each run on all of its tasks, not only the common ones.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the resampling.")] = 0,
    as_json: options.Json = False,
) -> None:
    """Success, tokens and tool calls per success with intervals, and what the differences are worth."""
    import orjson

    from coa.cli.run_reader import RunReader
    from coa.cli.terminal import show_warnings
    from coa.evaluate.compare import compare as compare_runs
    from coa.evaluate.comparison_page import comparison_page
    from coa.evaluate.folder import write_whole

    show_warnings()
    if len(runs) != len({str(run) for run in runs}):
        raise typer.BadParameter("a run is named twice")
    reader = RunReader(tokenizer, tasks, scorer, (judge, judge_name, judge_key_env), profile)
    found = compare_runs(asyncio.run(reader.read_all(runs)), shared=not every, seed=seed)
    data = orjson.dumps(found, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    write_whole(out / "report.json", data)
    write_whole(out / "report.html", comparison_page(found).encode())
    if as_json:
        typer.echo(data, nl=False)
        return
    _show(found, out)


def _show(found: dict[str, Any], out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from coa.evaluate.comparison_page import differences, look, table_rows

    runs = found["runs"]
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for run in runs:
        table.add_column(f"{run['name']} ({run['kind']})", justify="right", overflow="fold")
    for name, cells in table_rows(runs):
        table.add_row(name, *cells)
    Console(highlight=False).print(table)
    for line in differences(found["pairs"]):
        typer.echo(line)
    paths = {run["name"]: run["path"] for run in runs}
    for pair in found["pairs"][:3]:
        if tasks := pair["only_first"][:1] or pair["only_second"][:1]:
            typer.echo(f"they disagree on {tasks[0]}: {look(paths[pair['first']], tasks[0])}")
    for run, left in zip(runs, found["tasks_left_out"], strict=True):
        if left:
            lacking = plural(left, "task that another run lacks is", "tasks that another run lacks are")
            typer.echo(f"{run['name']}: {lacking} left out (--all)", err=True)
        for note in run["notes"]:
            typer.echo(f"{run['name']}: {note}", err=True)
    typer.echo(f"{out / 'report.html'}")
