"""`coa demo`: the whole pipeline on the embedded world and model. Its stages are the public commands."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from coa.cli.output import echo, echo_text


def demo(
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the demo; runs/demo, -quick or -long added. Run again with it to go on."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Ten minutes on two cores: every stage, small.")] = False,
    long: Annotated[bool, typer.Option("--long", help="Longer: an adapter to keep, such as nano.")] = False,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the world, the teacher and the training. Default: 7.")
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Print the commands, and stop.")] = False,
) -> None:
    """Run the whole pipeline on the embedded world: teach, distil, fine-tune, RL, evaluate. No GPU, key or network."""
    from coa.demo.commands import run_stages
    from coa.demo.recipes import RECIPES, SEED, stages_of

    seed = SEED if seed is None else seed
    if quick and long:
        raise typer.BadParameter("--quick or --long, not both")
    kind = "quick" if quick else "long" if long else "full"
    out = out or Path("runs", "demo" if kind == "full" else f"demo-{kind}")
    stages = stages_of(RECIPES[kind], out, seed)
    if plan:
        for stage in stages:
            echo(stage.shown())
        return
    seconds = run_stages(stages, out, {"recipe": kind, "seed": seed}, say=echo_text)
    if seconds is None:
        echo()
        echo("interrupted; the same command goes on from here")
        raise typer.Exit(1)
    _conclude(out, seconds, seed)


def _conclude(out: Path, seconds: float, seed: int) -> None:
    """The table, and what to type next."""
    import orjson

    from coa.cli.terminal import SafeConsole, SafeTable
    from coa.demo.commands import span
    from coa.demo.recipes import SEED
    from coa.demo.result import ENOUGH_TASKS, goals, new_question, short_table

    found = orjson.loads((out / "comparison" / "report.json").read_bytes())
    columns, rows = short_table(found)
    table = SafeTable(padding=(0, 1, 0, 0))
    for at, name in enumerate(columns):
        table.add_column(name, justify="right" if at else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    echo()
    echo(
        "In short, with 95 % intervals. `calls` are tool calls; `fixed` is the share of runs whose format "
        "the parser had to fix."
    )
    SafeConsole().print(table)
    for goal in goals(found):
        echo(goal.line())
    if (tasks := max(run["results"]["tasks"] for run in found["runs"])) < ENOUGH_TASKS:
        whole = "" if seed == SEED else f" --seed {seed} --out runs/demo-{seed}"
        echo(f"{tasks} tasks show the way, not what it is worth; for that: {_program()} demo{whole}")
    echo()
    echo(f"all of it took {span(seconds)}; look into every run, curve and comparison in a browser:")
    coa, model, world = _program(), shlex.quote(str(out / "rl")), shlex.quote(str(out / "world"))
    echo(f"  {coa} view {shlex.quote(str(out))}")
    echo("ask the trained model something new:")
    question, expected = new_question(out)
    echo(f"  {coa} run --model {model} --world {world} --temperature 0 {shlex.quote(question)}")
    echo(f"    ({expected})")


def _program() -> str:
    """What a person types for `coa` here: its path, where it is not on theirs."""
    here = Path(sys.executable).with_name("coa")
    found = shutil.which("coa")
    if (found and Path(found).resolve() == here.resolve()) or not here.is_file():
        return "coa"
    return shlex.quote(str(here.relative_to(Path.cwd()) if here.is_relative_to(Path.cwd()) else here))
