"""`coa compare`: evaluations, team traces and files of trajectories beside each other, on the same tasks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from coa.cli import options
from coa.cli.output import echo, echo_json
from coa.report import plural


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Evaluations, folders of coa teach, files of trajectories. Shards of one evaluation are added up."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for report.json and report.html.")] = Path("comparison"),
    tokenizer: Annotated[
        str | None, typer.Option(help="Tokenizer with which to count all tokens anew: smollm2, a folder, a hub id.")
    ] = None,
    tasks: Annotated[
        str | None, typer.Option(help="File or benchmark with the right answers, for traces that have none.")
    ] = None,
    scorer: Annotated[
        str | None, typer.Option(help="Scorer of the answers. Default: the scorer of the evaluations, else auto.")
    ] = None,
    judge: options.Judge = None,
    judge_name: options.JudgeName = None,
    judge_key_env: options.JudgeKeyEnv = "COA_API_KEY",
    profile: Annotated[
        str | None, typer.Option(help="Profile (a name or a .toml) to read the runs with, instead of the recorded one.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Count all tasks of each run, not only those that all runs have.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 0,
    as_json: options.Json = False,
) -> None:
    """Compare evaluations, team traces and trajectory files on the same tasks, with intervals."""
    from coa.cli.terminal import show_warnings
    from coa.compare import compare as compare_runs
    from coa.scoring.opening import JudgeConfig

    show_warnings()
    judging = JudgeConfig(judge=judge, judge_name=judge_name, judge_key_env=judge_key_env)
    found = compare_runs(
        runs, out, tokenizer=tokenizer, tasks=tasks, scorer=scorer, judge=judging, profile=profile,
        every_task=every, seed=seed,
    )  # fmt: skip
    if as_json:
        echo_json((out / "report.json").read_text(encoding="utf-8"), nl=False)
    else:
        _show(found.data, out)


def _show(found: Mapping[str, Any], out: Path) -> None:
    from coa.cli.terminal import SafeConsole, SafeTable
    from coa.compare.page import differences, look, paths_of, table_rows

    runs = found["runs"]
    table = SafeTable()
    table.add_column("")
    for run in runs:
        table.add_column(f"{run['name']} ({run['kind']})", justify="right", overflow="fold")
    for name, cells in table_rows(runs):
        table.add_row(name, *cells)
    SafeConsole().print(table)
    for line in differences(found["pairs"]):
        echo(line)
    paths = {run["name"]: paths_of(run) for run in runs}
    for pair in found["pairs"][:3]:
        if tasks := pair["only_first"][:1] or pair["only_second"][:1]:
            echo(f"they disagree on {tasks[0]}: {look(paths[pair['first']], tasks[0])}")
    for run, left in zip(runs, found["tasks_left_out"], strict=True):
        if left:
            lacking = plural(left, "task that another run lacks is", "tasks that another run lacks are")
            echo(f"{run['name']}: {lacking} left out (--all)", err=True)
        for note in run["notes"]:
            echo(f"{run['name']}: {note}", err=True)
    echo(f"{out / 'report.html'}")
