"""`coa rl`: improve a model by reinforcement learning with real tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coa.choices import Device, RlEngine
from coa.cli import options

CLUSTER = "Cluster"


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
    engine: Annotated[
        RlEngine | None,
        typer.Option(help="Train in this process, or with verl on a Ray cluster. Default: local.",
                     rich_help_panel=CLUSTER),
    ] = None,
    nnodes: Annotated[
        int | None, typer.Option(min=1, help="Number of machines that train, with verl.", rich_help_panel=CLUSTER)
    ] = None,
    gpus_per_node: Annotated[
        int | None,
        typer.Option(min=1, help="Number of GPUs of each machine, with verl. Default: 8.", rich_help_panel=CLUSTER),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(help="Address of the Ray cluster: auto, HOST:PORT or ray://HOST:PORT. Default: RAY_ADDRESS, or "
                     "Ray is started on this machine.", rich_help_panel=CLUSTER),
    ] = None,
    device: Annotated[
        Device | None,
        typer.Option(help="With verl: train on GPUs, or try the whole path on this machine's CPU with a tiny model.",
                     rich_help_panel=CLUSTER),
    ] = None,
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
    from coa.rl import RlConfig, RlPlan, plan
    from coa.rl import rl as train

    show_warnings()
    given = {
        "model": model, "tasks": tasks, "profile": profile, "world": world, "tools": tuple(tool) if tool else None,
        "eval_tasks": eval_tasks, "max_steps": steps, "engine": engine, "ray": ray, "verl.device": device,
        "verl.nnodes": nnodes, "verl.gpus_per_node": gpus_per_node,
    }  # fmt: skip
    flags = {"--nnodes": nnodes, "--gpus-per-node": gpus_per_node, "--ray": ray, "--device": device}

    def refuse_unused(chosen: RlConfig) -> None:
        unused = [flag for flag, value in flags.items() if value is not None]
        if chosen.engine != "verl" and unused:
            raise misused(f"{unused[0]} is for the verl engine", "add --engine verl")

    def planned(chosen: RlConfig) -> RlPlan:
        refuse_unused(chosen)
        return plan(chosen)

    chosen = resolve(
        RlConfig, config, settings, given, show_settings=show_settings, dry_run=dry_run, plan=planned, as_json=as_json
    )
    refuse_unused(chosen)
    if out is None:
        raise misused("the run needs a folder: add --out runs/rl")
    close(train(chosen, out, command=this_command(), progress=terminal_progress()), out, as_json=as_json)
