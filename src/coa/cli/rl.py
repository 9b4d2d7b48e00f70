"""`coa rl`: improve a model by reinforcement learning with real tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coa.cli.training import close, loading_torch, say, status, this_command
from coa.errors import TrainingError


def rl(
    config: Annotated[Path | None, typer.Argument(help="A recipe in TOML, e.g. configs/rl/nano.toml.")] = None,
    model: Annotated[str | None, typer.Option(help="A model folder (runs/sft), a hub id, or smollm2.")] = None,
    tasks: Annotated[str | None, typer.Option(help="Tasks to learn from: a file, a folder, or owner/name.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder. Run again with it to go on.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, e.g. lr=1e-5 or reward.scorer=math. Repeatable.")
    ] = None,
    profile: Annotated[str | None, typer.Option(help="Profile by name or .toml.")] = None,
    world: Annotated[
        str | None, typer.Option(help="Tools of an offline world: atlas, atlas:SEED, or a folder of coa world build.")
    ] = None,
    tool: Annotated[list[str] | None, typer.Option(help="name=setting or name=module:factory. Repeatable.")] = None,
    eval_tasks: Annotated[str | None, typer.Option(help="Tasks that are not learnt from, to look at success.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Number of training steps.")] = None,
    show_settings: Annotated[bool, typer.Option("--settings", help="List all keys for --set, and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, nothing else.")] = False,
) -> None:
    """Reinforcement learning (DAPO): attempt tasks with real tools, learn from what did better than the rest."""
    from coa.rl.config import describe, load_config
    from coa.worlds.atlas.questions import PROFILE as WORLD_PROFILE

    if show_settings:
        typer.echo(describe())
        return
    chosen = load_config(
        config,
        settings or (),
        model=model,
        tasks=tasks,
        profile=profile or (WORLD_PROFILE if world else None),
        world=world,
        tools=tuple(tool) if tool else None,
        eval_tasks=eval_tasks,
        max_steps=steps,
    )
    if chosen.tasks is None:
        raise TrainingError("there are no tasks to learn from", hint="add --tasks FILE")
    if out is None:
        raise TrainingError("the run needs a folder", hint="add --out runs/rl")
    with loading_torch():
        from coa.rl.loop import train
    close(train(chosen, out, command=this_command(), tell=say, status=status), out, as_json=as_json)
