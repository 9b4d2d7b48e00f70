"""`coa sft`: fine-tune a model on trajectories."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coa.cli import options

_EVAL = "Evaluation during training"


def sft(
    config: Annotated[
        Path | None, typer.Argument(help="TOML file with settings, such as configs/sft/nano.toml.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Model to train: a model folder, a hub id, or smollm2.", rich_help_panel=options.AGENT),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(help="Trajectories or AFM SFT rows: a file, a folder or a hub id. Repeatable."),
    ] = None,
    profile: Annotated[str | None, typer.Option(help="Profile of the data; data of any other is refused.")] = None,
    eval_tasks: Annotated[
        str | None,
        typer.Option("--eval-tasks", "--tasks", rich_help_panel=_EVAL,
                     help="Tasks to run the agent on. Default: some of the data's are held out."),
    ] = None,
    num_eval_tasks: Annotated[
        int | None,
        typer.Option("--num-eval-tasks", "--init-eval", min=0,
                     help="Number of held-out tasks to run the agent on before, during and after training.",
                     rich_help_panel=_EVAL),
    ] = None,
    tool: Annotated[
        list[str] | None,
        typer.Option(help="Tool for these runs as name=setting or name=module:factory. Repeatable.",
                     rich_help_panel=_EVAL),
    ] = None,
    world: Annotated[
        str | None, typer.Option(help="Offline world whose tools to use for these runs.", rich_help_panel=_EVAL)
    ] = None,
    settings: options.Set = None,
    show_settings: options.ShowSettings = False,
    dry_run: options.DryRunPlan = False,
    out: options.RunFolder = None,
    as_json: options.Json = False,
) -> None:  # fmt: skip
    """Fine-tune a model on trajectories. The loss covers what the model wrote, not prompts or observations."""
    from coa.cli.configuring import misused, resolve
    from coa.cli.progress import terminal_progress
    from coa.cli.terminal import show_warnings
    from coa.cli.training import close, this_command
    from coa.sft import SftConfig, plan
    from coa.sft import sft as train

    show_warnings()
    given = {
        "model": model, "data": tuple(data) if data else None, "profile": profile, "num_eval_tasks": num_eval_tasks,
        "eval_tasks": eval_tasks, "tools": tuple(tool) if tool else None, "world": world,
    }  # fmt: skip
    chosen = resolve(
        SftConfig, config, settings, given, show_settings=show_settings, dry_run=dry_run, plan=plan, as_json=as_json
    )
    if out is None:
        raise misused("the run needs a folder: add --out runs/sft")
    close(train(chosen, out, command=this_command(), progress=terminal_progress()), out, as_json=as_json)
