"""`coa profile`: what a profile contains, for people."""

from __future__ import annotations

from typing import Annotated

import typer

from coa.cli import options

profile = typer.Typer(help="Show the agents of a profile and who may follow whom.", no_args_is_help=True)


@profile.command("list")
def list_profiles(as_json: options.Json = False) -> None:
    """List the profiles that come with coa."""
    from coa.trajectory.profile import load_profile, shipped

    about = {name: load_profile(name).about for name in shipped()}
    if as_json:
        import orjson

        listed = [{"name": name, "about": text} for name, text in about.items()]
        typer.echo(orjson.dumps(listed, option=orjson.OPT_INDENT_2))
        return
    for name, text in about.items():
        typer.echo(f"{name:<6} {text}")


@profile.command()
def show(
    name: Annotated[str, typer.Argument(help="Name of a shipped profile or path of a .toml file.")],
    prompt: Annotated[bool, typer.Option("--prompt", help="Print the system prompt instead.")] = False,
    toml: Annotated[
        bool, typer.Option("--toml", help="Print the source of the profile, as a start for your own.")
    ] = False,
    dot: Annotated[bool, typer.Option("--dot", help="Print the graph for Graphviz.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show the rules of a profile as a table and as a graph. A contradictory profile is refused with the reason."""
    from pathlib import Path

    from coa.cli.rendering import show_profile, to_dot
    from coa.cli.terminal import SafeConsole
    from coa.trajectory.profile import load_profile, shipped, shipped_toml

    shown = load_profile(name)
    if as_json:
        typer.echo(shown.model_dump_json(indent=2))
    elif prompt:
        typer.echo(shown.system_prompt)
    elif toml:
        typer.echo(shipped_toml(name) if name in shipped() else Path(name).read_text(encoding="utf-8"))
    elif dot:
        typer.echo(to_dot(shown))
    else:
        show_profile(SafeConsole(highlight=False), shown)
