"""`coa profile`: the grammar, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from coa.trajectory import Profile

profile = typer.Typer(help="Show the agents of a profile and who may follow whom.", no_args_is_help=True)


@profile.command("list")
def list_profiles() -> None:
    """The profiles that come with coa."""
    from coa.trajectory.profile import load_profile, shipped

    for name in shipped():
        typer.echo(f"{name:<6} {load_profile(name).about}")


@profile.command()
def show(
    name: Annotated[str, typer.Argument(help="A shipped profile or the path of a .toml file.")],
    prompt: Annotated[bool, typer.Option("--prompt", help="Print the system prompt instead.")] = False,
    toml: Annotated[
        bool, typer.Option("--toml", help="Print the source of a shipped profile, to start one's own.")
    ] = False,
    dot: Annotated[bool, typer.Option("--dot", help="Print the graph for Graphviz.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """The rules of a profile as a table and as a graph. A contradictory profile is refused with the reason."""
    from rich.console import Console
    from rich.text import Text

    from coa.trajectory.profile import load_profile, shipped, shipped_toml

    shown = load_profile(name)
    if as_json:
        typer.echo(shown.model_dump_json(indent=2))
    elif prompt:
        typer.echo(shown.system_prompt)
    elif toml and name in shipped():
        typer.echo(shipped_toml(name))
    elif toml:
        with open(name, encoding="utf-8") as file:
            typer.echo(file.read())
    elif dot:
        typer.echo(_dot(shown))
    else:
        console = Console(highlight=False)
        console.print(Text.assemble((shown.name, "bold"), f"  {shown.about}\n"))
        console.print(_table(shown))
        console.print("\n[bold]Who may follow whom[/]")
        for line in _graph(shown):
            console.print(line, soft_wrap=True)
        limits = ", ".join(f"{key} {value:g}" for key, value in shown.limits.model_dump(exclude_none=True).items())
        console.print(f"\n[bold]Limits[/] {limits}")


def _table(shown: Profile) -> Table:
    from rich.table import Table
    from rich.text import Text

    from coa.trajectory.shapes import expectation

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("tag", "agent", "kind", "content", "needs a thought", "at most"):
        table.add_column(heading, no_wrap=heading == "tag")
    for tag, agent in shown.agents.items():
        table.add_row(
            Text(tag, style=agent.color),
            Text(agent.title),
            agent.kind.value,
            Text(expectation(agent.shape)),
            "yes" if agent.thought else "",
            str(agent.max or ""),
        )
    return table


def _graph(shown: Profile) -> list[str]:
    """An arrow a line; `~>` goes through an observation."""
    from coa.trajectory import Kind

    def colored(tag: str) -> str:
        return f"[{shown.color(tag)}]{tag}[/]"

    lines = [f"{'(start)':>18} -> {' | '.join(map(colored, shown.start))}"]
    for tag, agent in shown.agents.items():
        pad = " " * (18 - len(tag))
        if agent.kind is Kind.ANSWER:
            lines.append(f"{pad}{colored(tag)} -> (end)")
        elif agent.kind is not Kind.THOUGHT:
            arrow = "~>" if agent.kind is Kind.TOOL else "->"
            lines.append(f"{pad}{colored(tag)} {arrow} {' | '.join(map(colored, agent.next))}")
        if agent.verdict is not None:
            lines.append(f"{'':>21} {agent.verdict.describe()}")
    if shown.thought:
        lines.append(f"{'':>18}    {colored(shown.thought)} may stand before any of them; ~> passes an observation")
    return lines


def _dot(shown: Profile) -> str:
    from coa.trajectory import Kind

    lines = [f'digraph "{shown.name}" {{', "  rankdir=LR; node [shape=box, style=rounded];", "  start [shape=point];"]
    lines += [f"  start -> {tag};" for tag in shown.start]
    for tag, agent in shown.agents.items():
        if agent.kind is not Kind.THOUGHT:
            style = ' [label="observation", style=dashed]' if agent.kind is Kind.TOOL else ""
            lines += [f"  {tag} -> {following}{style};" for following in agent.next]
    return "\n".join([*lines, "}"])
