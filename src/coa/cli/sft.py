"""`coa sft`: fine-tune a model on trajectories."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coa.cli.training import close, loading_torch, say, this_command
from coa.errors import TrainingError


def sft(
    config: Annotated[Path | None, typer.Argument(help="A recipe in TOML, e.g. configs/sft/nano.toml.")] = None,
    model: Annotated[str | None, typer.Option(help="A model folder, a hub id, or smollm2.")] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="Trajectories or AFM SFT rows: file, folder or hub id. Repeatable.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder. Run again with it to go on.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, e.g. lr=1e-5 or lora.rank=8. Repeatable.")
    ] = None,
    profile: Annotated[str | None, typer.Option(help="Profile of the data, by name or .toml.")] = None,
    init_eval: Annotated[
        int | None, typer.Option(min=0, help="Run the agent on so many held-out tasks before, during and after.")
    ] = None,
    tasks: Annotated[
        str | None, typer.Option(help="Tasks for --init-eval; else some of the data's are held out.")
    ] = None,
    tool: Annotated[
        list[str] | None, typer.Option(help="For --init-eval: name=setting or name=module:factory. Repeatable.")
    ] = None,
    world: Annotated[
        str | None, typer.Option(help="For --init-eval: tools of an offline world, atlas or a folder.")
    ] = None,
    show_settings: Annotated[bool, typer.Option("--settings", help="List all keys for --set, and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, nothing else.")] = False,
) -> None:
    """Fine-tune on trajectories: loss on what the model wrote, none on prompts and observations."""
    from coa.sft.config import describe, load_config

    if show_settings:
        typer.echo(describe())
        return
    chosen = load_config(
        config,
        settings or (),
        model=model,
        data=tuple(data) if data else None,
        profile=profile,
        num_eval_tasks=init_eval,
        eval_tasks=tasks,
        tools=tuple(tool) if tool else None,
        world=world,
    )
    if not chosen.data:
        raise TrainingError("there is no data to train on", hint="add --data FILE, a folder, or a hub id")
    if out is None:
        raise TrainingError("the run needs a folder", hint="add --out runs/sft")
    with loading_torch():
        from coa.sft.train import train
    close(train(chosen, out, command=this_command(), tell=say), out, as_json=as_json)
