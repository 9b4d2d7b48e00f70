"""`coa demo`: the whole pipeline on the embedded world and model. Its stages are the public commands."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coa.cli.output import echo, echo_text

if TYPE_CHECKING:
    from coa.demo.commands import Follower


def demo(
    out: Annotated[
        Path | None,
        typer.Option(help="Output folder. Default: runs/demo, runs/demo-quick or runs/demo-long. Reuse it to resume."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run every stage with small budgets: about ten minutes on two cores.")
    ] = False,
    long: Annotated[
        bool, typer.Option("--long", help="Train longer, and train an adapter, as was done for nano.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the world, the teacher and training. Default: 7.")
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Print the commands of the demo without running them.")] = False,
) -> None:
    """Run the whole pipeline on the embedded world: teach, distil, fine-tune, RL, evaluate. No GPU, key or network."""
    from coa.demo.commands import run_stages
    from coa.demo.recipes import RECIPES, SEED, stages_of
    from coa.errors import CoaError
    from coa.installing import missing

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
    if absent := missing(["demo"]):
        raise CoaError(f"the demo needs what is not installed: {absent.named()}", needs=["demo"])
    with _follower(out) as follower:
        seconds = run_stages(stages, out, {"recipe": kind, "seed": seed}, follower)
    if seconds is None:
        echo()
        echo("Interrupted. The same command resumes the demo.")
        raise typer.Exit(1)
    _conclude(out, seconds, seed)


@contextmanager
def _follower(out: Path) -> Iterator[Follower]:
    """A screen for a person, or lines for a log."""
    from coa.cli.terminal import SafeConsole
    from coa.demo.commands import Printed

    if not SafeConsole().is_terminal:
        yield Printed(echo_text)
        return
    from coa.cli.dashboard import Dashboard

    with Dashboard(out) as dashboard:
        yield dashboard


def _conclude(out: Path, seconds: float, seed: int) -> None:
    """The table, and what to type next, in lines that fit a terminal of 80 columns."""
    import orjson

    from coa.cli.terminal import SafeConsole, SafeTable
    from coa.demo.commands import in_words
    from coa.demo.recipes import SEED
    from coa.demo.result import ENOUGH_TASKS, goals, new_question, short_table
    from coa.errors import program

    found = orjson.loads((out / "comparison" / "report.json").read_bytes())
    columns, rows = short_table(found)
    table = SafeTable(padding=(0, 1, 0, 0))
    for at, name in enumerate(columns):
        table.add_column(name, justify="right" if at else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    echo()
    echo("Results on questions that no model was trained on, with 95 % intervals:")
    SafeConsole().print(table)
    for goal in goals(found):
        echo_text(goal.line())
    if (tasks := max(run["results"]["tasks"] for run in found["runs"])) < ENOUGH_TASKS:
        whole = "" if seed == SEED else f" --seed {seed} --out runs/demo-{seed}"
        echo(f"{tasks} questions are too few to measure anything. The full demo asks {ENOUGH_TASKS}:")
        echo(f"  {program()} demo{whole}")
    coa, model, world = program(), shlex.quote(str(out / "rl")), shlex.quote(str(out / "world"))
    question, expected = new_question(out)
    echo()
    echo(f"The demo took {in_words(seconds)}. Three things to try next:")
    echo("1. See every run, curve and comparison in your browser:")
    echo(f"     {coa} view {shlex.quote(str(out))}")
    echo("2. Ask the trained model a new question:")
    echo(f"     {coa} run --model {model} \\")
    echo(f"       --world {world} --temperature 0 \\")
    echo(f"       {shlex.quote(question)}")
    echo(f"   {expected}")
    echo("3. Put the trained model behind an API, with a web page to ask it:")
    echo(f"     {coa} serve --model {model} --world {world}")
