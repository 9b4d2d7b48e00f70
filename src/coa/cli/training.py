"""What `coa sft` and `coa rl` print at the end."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from coa.cli.output import echo, echo_json

if TYPE_CHECKING:
    from coa.training.run_folder import TrainingResult


def this_command() -> str:
    """The command as it was typed, for the model's card."""
    return shlex.join(["coa", *sys.argv[1:]])


def close(result: TrainingResult, out: Path, *, as_json: bool) -> None:
    """Print the result of a run; one that was stopped before its end exits with 1."""
    if not result.main:
        return
    if as_json:
        import orjson

        shown = {"folder": str(result.folder), "steps": result.steps, "finished": result.finished}
        echo_json(orjson.dumps({**shown, "figures": dict(result.figures)}))
    elif result.finished:
        for name, figure in result.figures.items():
            echo(f"{name}: {figure}")
        echo(f'ask it: coa run "question" --model {shlex.quote(str(out))}')
    if not result.finished:
        raise typer.Exit(1)
