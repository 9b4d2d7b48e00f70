"""`coa profile`: what a profile contains, for people, and a profile made from the traces of a team."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coa.cli import options
from coa.cli.output import echo, echo_json, echo_source

if TYPE_CHECKING:
    from coa.distill.profile_from_traces import ProfileProposal

profile = typer.Typer(
    help="Show the agents of a profile and who may follow whom, or make one from traces.", no_args_is_help=True
)


@profile.command("list")
def list_profiles(as_json: options.Json = False) -> None:
    """List the profiles that come with coa."""
    from coa.trajectory.profile import load_profile, shipped

    about = {name: load_profile(name).about for name in shipped()}
    if as_json:
        import orjson

        listed = [{"name": name, "about": text} for name, text in about.items()]
        echo_json(orjson.dumps(listed, option=orjson.OPT_INDENT_2))
        return
    for name, text in about.items():
        echo(f"{name:<6} {text}")


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
    from coa.cli.rendering import show_profile, to_dot
    from coa.cli.terminal import SafeConsole
    from coa.trajectory.profile import load_profile, shipped, shipped_toml

    shown = load_profile(name)
    if as_json:
        echo_json(shown.model_dump_json(indent=2))
    elif prompt:
        echo_source(shown.system_prompt)
    elif toml:
        echo_source(shipped_toml(name) if name in shipped() else Path(name).read_text(encoding="utf-8"))
    elif dot:
        echo_source(to_dot(shown))
    else:
        show_profile(SafeConsole(), shown)


@profile.command("from-traces")
def from_traces(
    traces: Annotated[list[Path], typer.Argument(help="Traces of any known format, files or folders.")],
    name: Annotated[str, typer.Option(help="Name of the profile.")] = "team",
    roles: Annotated[
        Path | None,
        typer.Option(help="TOML file that gives agents of the team a role: act, plan, reflect, verify or drop."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Print a profile that fits what a team did: its tools, its order and its limits. Save it as a .toml file."""
    from coa.distill import profile_from_traces

    made = profile_from_traces(traces, name=name, roles=roles)
    if as_json:
        import orjson

        echo_json(orjson.dumps(made.to_json(), option=orjson.OPT_INDENT_2))
        return
    echo_source(made.toml, nl=False)
    _summarise(made)


def _summarise(made: ProfileProposal) -> None:
    """What was found, beside the profile, which is on stdout."""
    from coa.report import plural

    lines = [f"{plural(made.runs, 'run')}; {made.fitting:,} of them follow the proposed profile"]
    if made.tools:
        lines.append("tools: " + ", ".join(f"{tag} ({plural(calls, 'call')})" for tag, calls in made.tools.items()))
    if made.parts:
        lines.append("agents of the team: " + ", ".join(f"{name} ({part})" for name, part in made.parts.items()))
    lines += [f"note: {note}" for note in made.notes]
    lines += [f"unreadable: {item.file} {item.place}: {item.reason}" for item in made.skipped[:5]]
    if len(made.skipped) > 5:
        lines.append(f"... {len(made.skipped):,} unreadable places in all")
    for line in lines:
        echo(line, err=True)
