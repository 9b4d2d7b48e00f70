"""What `coa sft` and `coa rl` have in common around the training itself: before torch is loaded, and at the end."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING

import typer

from coa.errors import TrainingError

if TYPE_CHECKING:
    from coa.training.run_folder import TrainingResult


@contextmanager
def loading_torch() -> Iterator[None]:
    """Around the import of what trains."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: waiting threads must not spin
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        yield
    except ImportError as error:
        raise TrainingError(
            f"training needs torch, transformers and peft ({error})",
            hint=f"{sys.executable} -m pip install 'chain-of-agents[train]'",
        ) from error


def this_command() -> str:
    """As it was typed, for the model's card."""
    return shlex.join(["coa", *sys.argv[1:]])


def say(line: str) -> None:
    _clear()
    typer.echo(line, err=True)


def status(line: str) -> None:
    """Where it stands, for a person who looks; the next line takes its place. A log has nothing of it."""
    if sys.stderr.isatty():
        _clear()
        # Back to the line's beginning: what others print must not be appended to it.
        typer.echo(f"{line[: get_terminal_size().columns - 1]}\r", err=True, nl=False)


def _clear() -> None:
    if sys.stderr.isatty():
        typer.echo("\r\x1b[K", err=True, nl=False)


def close(result: TrainingResult, out: Path, *, as_json: bool) -> None:
    """Tell what a run came to; one that was stopped before its end exits with 1."""
    if not result.main:
        return
    if as_json:
        import orjson

        told = {"folder": str(result.folder), "steps": result.steps, "finished": result.finished}
        typer.echo(orjson.dumps({**told, "figures": dict(result.figures)}))
    elif result.finished:
        for name, figure in result.figures.items():
            typer.echo(f"{name}: {figure}")
        typer.echo(f'ask it: coa run "question" --model {shlex.quote(str(out))}')
    if not result.finished:
        raise typer.Exit(1)
