"""`coa score`: score finished runs again, or by another scorer, without running anything."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coa.cli import options
from coa.cli.output import echo, echo_json


def score(
    runs: Annotated[list[Path], typer.Argument(help="Evaluations, or files of trajectories.")],
    scorer: Annotated[str, typer.Option(help="exact, f1, numeric, math, choice, code, judge, auto, module:function.")],
    judge: options.Judge = None,
    judge_name: options.JudgeName = None,
    judge_key_env: options.JudgeKeyEnv = "COA_API_KEY",
    out: Annotated[
        Path | None,
        typer.Option(help="File or folder of the scored runs. Default: NAME.scored.jsonl beside a file, NAME-scored "
                          "beside a folder."),
    ] = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Add the scores to the runs themselves, which rewrites their file.")
    ] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace existing scores of the same name.")] = False,
    unscored: Annotated[
        bool, typer.Option("--unscored", help="Replace only existing scores that have no value.")
    ] = False,
    concurrency: Annotated[
        int, typer.Option("--concurrency", "--at-once", min=1, help="Number of answers scored at a time.")
    ] = 32,
    as_json: options.Json = False,
) -> None:  # fmt: skip
    """Score finished runs again, or with another scorer, without running the model. The runs stay as they are, and the
    scored copy is written beside them, unless --out or --in-place is given."""
    from dataclasses import asdict

    from coa.cli.progress import terminal_progress
    from coa.cli.terminal import show_warnings
    from coa.evaluate.rescore import score as score_runs
    from coa.scoring.opening import JudgeConfig

    show_warnings()
    judging = JudgeConfig(judge=judge, judge_name=judge_name, judge_key_env=judge_key_env)
    found = score_runs(
        runs, scorer, out=out, in_place=in_place, judge=judging, replace=replace, unscored=unscored,
        concurrency=concurrency, progress=terminal_progress(),
    )  # fmt: skip
    if as_json:
        import orjson

        echo_json(orjson.dumps([asdict(row) for row in found]))
        return
    for row in found:
        echo(
            f"{row.run}: {row.right:,} of {row.runs:,} right by {row.scorer}, {row.failed:,} failed, "
            f"{row.unscored:,} unscored; {row.scored_now:,} scored now, {row.kept:,} before"
        )
        for name, figure in row.agreement.items():
            echo(f"  agreement with {name:<12} {figure:.1%}")
        echo(f"  written to {row.report or row.out}")
