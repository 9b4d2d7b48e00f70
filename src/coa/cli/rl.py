"""`coa rl`: improve a model by reinforcement learning with real tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coa.cli import options


def rl(
    config: Annotated[
        Path | None, typer.Argument(help="TOML file with settings, such as configs/rl/nano.toml.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Model to train: a model folder (runs/sft), a hub id, or smollm2.",
                     rich_help_panel=options.AGENT),
    ] = None,
    tasks: Annotated[str | None, typer.Option(help="Tasks to learn from: a file, a folder, or a hub id.")] = None,
    eval_tasks: Annotated[
        str | None, typer.Option(help="Held-out tasks on which to report success during training.")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Number of training steps.")] = None,
    profile: Annotated[
        str | None,
        typer.Option(help="Name of a shipped profile or path of a .toml file. Default: the world's profile, else nano.",
                     rich_help_panel=options.AGENT),
    ] = None,
    world: options.World = None,
    tool: options.Tool = None,
    settings: options.Set = None,
    show_settings: options.ShowSettings = False,
    dry_run: options.DryRunPlan = False,
    out: options.RunFolder = None,
    as_json: options.Json = False,
) -> None:  # fmt: skip
    """Train a model by reinforcement learning (DAPO) with real tool calls."""
    from coa.cli.configuring import misused, resolve
    from coa.cli.progress import terminal_progress
    from coa.cli.terminal import show_warnings
    from coa.cli.training import close, this_command
    from coa.rl import RlConfig, plan
    from coa.rl import rl as train

    show_warnings()
    given = {
        "model": model, "tasks": tasks, "profile": profile, "world": world, "tools": tuple(tool) if tool else None,
        "eval_tasks": eval_tasks, "max_steps": steps,
    }  # fmt: skip
    chosen = resolve(
        RlConfig, config, settings, given, show_settings=show_settings, dry_run=dry_run, plan=plan, as_json=as_json
    )
    if out is None:
        raise misused("the run needs a folder: add --out runs/rl")
    close(train(chosen, out, command=this_command(), progress=terminal_progress()), out, as_json=as_json)
