"""`coa world`: build an offline world, look at it, serve it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coa.cli import options
from coa.cli.output import echo, echo_json
from coa.report import plural

world = typer.Typer(help="Offline worlds: build one, look at it, serve it.", no_args_is_help=True)
_GENERATOR = "Generator of the source. Repeatable. Default: those whose answer is a number."
_WHICH = typer.Argument(help="atlas, atlas:SEED, or a folder of coa world build.")


@world.command()
def build(
    out: Annotated[Path, typer.Option(help="Folder of the world.")],
    seed: Annotated[int, typer.Option(min=0, help="Seed of the world; the same seed gives the same world.")] = 7,
    cities: Annotated[int, typer.Option(min=20, help="Number of cities.")] = 200,
    people: Annotated[int, typer.Option(min=30, help="Number of people.")] = 300,
    firms: Annotated[int, typer.Option(min=10, help="Number of firms.")] = 100,
    train: Annotated[int, typer.Option(min=0, help="Number of tasks to teach with.")] = 400,
    rl: Annotated[int, typer.Option(min=0, help="Number of tasks for reinforcement learning.")] = 300,
    test: Annotated[int, typer.Option(min=0, help="Number of held-out tasks.")] = 240,
    force: Annotated[bool, typer.Option("--force", help="Replace another world in the folder.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print world.json.")] = False,
) -> None:
    """Build the atlas: invented cities, people and firms, their pages, a search index, and tasks in three splits."""
    from coa.cli.progress import terminal_progress
    from coa.worlds.atlas import Atlas, Sizes
    from coa.worlds.folder import NAME
    from coa.worlds.folder import build as build_world

    atlas = Atlas(seed, Sizes(cities, people, firms, train, rl, test))
    built = build_world(atlas, out, force=force, progress=terminal_progress())
    if as_json:
        echo_json((out / NAME).read_text(encoding="utf-8"), nl=False)
        return
    echo(f"{out}: {built.pages} pages; tasks: {train} train, {rl} rl, {test} test; hash {built.hash}")
    echo(f"look at it: coa world serve {out}")


@world.command()
def show(
    name: Annotated[str, _WHICH] = "atlas",
    tokenizer: Annotated[
        str, typer.Option(help="Tokenizer that counts tokens: smollm2, a folder, a hub id.")
    ] = "smollm2",
    examples: Annotated[int, typer.Option(min=0, help="Number of example questions of each family.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Show a world: its families of questions with examples, and the tokens of an ideal trajectory for each."""
    import asyncio
    from collections import Counter

    import orjson

    from coa.models.tokenizer import load_tokenizer
    from coa.worlds.atlas.entities import Split
    from coa.worlds.folder import locate, read
    from coa.worlds.team.play import ideal_tokens

    folder = locate(name)
    built = read(folder)
    atlas = built.atlas()
    tokens = asyncio.run(ideal_tokens(name, load_tokenizer(tokenizer)))
    counts = {split: Counter(str(task.meta["family"]) for task in atlas.tasks(split)) for split in Split}
    if as_json:
        families = {
            family: {"tasks": {split: counts[split][family] for split in Split}, "tokens": spent}
            for family, spent in tokens.items()
        }
        echo_json(orjson.dumps({"folder": str(folder), "hash": built.hash, "families": families}))
        return
    echo(str(folder))
    echo(f"seed {built.seed}, {built.pages} pages, hash {built.hash}")
    echo()
    echo(f"{'family':<12}{'train':>6}{'rl':>6}{'test':>6}   tokens of an ideal run: all, written by the model")
    for family, (total, written) in tokens.items():
        row = "".join(f"{counts[split][family]:>6}" for split in Split)
        echo(f"{family:<12}{row}   {total:.0f}, {written:.0f}")
    for family in tokens:
        asked = [task for task in atlas.tasks(Split.TRAIN) if task.meta["family"] == family]
        for task in asked[:examples]:
            echo()
            echo(f"{family}: {task.question}")
            echo(f"  {task.answer[0]}")


@world.command()
def tasks(
    out: Annotated[Path, typer.Option(help="File for the tasks, .jsonl.")],
    source: Annotated[str, typer.Option(help="Source of the tasks: reasoning-gym.")] = "reasoning-gym",
    dataset: Annotated[list[str] | None, typer.Option(help=_GENERATOR)] = None,
    count: Annotated[int, typer.Option(min=1, help="Number of tasks.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the tasks; the same seed gives the same tasks.")] = 7,
    as_json: options.Json = False,
) -> None:
    """Write tasks of another source, which a program can answer."""
    import orjson

    from coa.folder import write_atomic
    from coa.trajectory.formats.tasks import from_task
    from coa.worlds.gym import DATASETS, gym_tasks

    if source != "reasoning-gym":
        raise typer.BadParameter(f"--source is reasoning-gym, not {source!r}; coa world build makes the atlas")
    rows = [orjson.dumps(from_task(task)) + b"\n" for task in gym_tasks(count, seed, dataset or DATASETS)]
    write_atomic(out, b"".join(rows))
    if as_json:
        echo_json(orjson.dumps({"file": str(out), "tasks": len(rows)}))
    else:
        echo(f"{out}: {plural(len(rows), 'task')}")


@world.command()
def serve(
    name: Annotated[str, _WHICH] = "atlas",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the server; 0 takes a free one.")] = 8090,
) -> None:
    """Serve a world's pages on this machine, for a browser, until Ctrl-C."""
    import asyncio

    from coa.errors import WorldError
    from coa.worlds import open_world

    async def go() -> None:
        async with open_world(name, port=port) as opened:
            echo(f"{opened.url} (Ctrl-C ends it)")
            await asyncio.Event().wait()

    try:
        asyncio.run(go())
    except KeyboardInterrupt:
        echo(err=True)
    except OSError as error:
        problem = f"cannot serve on port {port}: {error.strerror or error}"
        raise WorldError(problem, hint="choose another --port") from error
