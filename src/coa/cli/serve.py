"""`coa serve`: agents behind an API, with a web page to ask them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coa.cli import options
from coa.cli.configuring import misused
from coa.cli.output import echo

if TYPE_CHECKING:
    from coa.serve import AgentServer

_server = partial(typer.Option, rich_help_panel="Server")


def serve(
    agents: Annotated[
        Path | None,
        typer.Argument(metavar="AGENTS.toml", help="File with the settings of the server and of several agents."),
    ] = None,
    model: options.Model = None,
    model_name: options.ModelName = None,
    profile: options.Profile = None,
    world: options.World = None,
    tool: options.Tool = None,
    mcp: options.Mcp = None,
    temperature: options.Temperature = None,
    seed: options.Seed = None,
    budget: options.Budget = None,
    name: Annotated[
        str | None, _server(help="Model name under which clients reach the agent. Default: that of its model.")
    ] = None,
    host: Annotated[str | None, _server(help="Address to listen on. Default: 127.0.0.1.")] = None,
    port: Annotated[int | None, _server(min=0, max=65535, help="Port to listen on. Default: 8080.")] = None,
    keys_file: Annotated[Path | None, _server(help="File with the hashed keys of clients.")] = None,
    add_key: Annotated[
        str | None, _server(metavar="NAME", help="Add a key of this name to --keys-file, print it once, and stop.")
    ] = None,
    settings: options.Set = None,
    show_settings: options.ShowSettings = False,
    dry_run: options.DryRun = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Append every run to this .jsonl file, or to the one in this folder.",
                     rich_help_panel=options.OUTPUT),
    ] = None,
) -> None:  # fmt: skip
    """Serve agents behind the Responses and Chat Completions APIs and MCP, with a web page to ask them."""
    from coa.cli.configuring import resolve, run_flags
    from coa.cli.progress import terminal_progress
    from coa.cli.terminal import show_warnings
    from coa.serve.config import ServeConfig

    show_warnings()
    if add_key is not None:
        _add_key(add_key, keys_file)
        return
    given = {
        **run_flags("run.", model=model, model_name=model_name, profile=profile, world=world, tool=tool, mcp=mcp,
                    temperature=temperature, seed=seed, budget=budget),
        "name": name, "host": host, "port": port, "keys_file": keys_file,
    }  # fmt: skip
    config = resolve(ServeConfig, agents, settings, given, show_settings=show_settings, dry_run=dry_run)
    of_one = {key: value for key, value in given.items() if key == "name" or key.startswith("run.")}
    if config.agents and any(value is not None for value in of_one.values()):
        raise misused("the agents are in the file; options such as --model and --name belong to a single agent")
    from coa.serve import serve as open_server

    open_server(config, out=out, progress=terminal_progress()).run_forever(_announce)


def _add_key(name: str, file: Path | None) -> None:
    from coa.serve.keys import add_key

    if file is None:
        raise misused("name the file of hashed keys with --keys-file: coa serve --add-key NAME --keys-file keys.txt")
    echo(add_key(file, name))
    echo(f"the key is shown only now; its hash is in {file}", err=True)


def _announce(server: AgentServer) -> None:

    assert server.service is not None
    names = ", ".join(server.service.agents)
    echo(f"serving {names} at {server.url}/v1")
    if server.config.page:
        echo(f"open {server.url} to ask it in a browser")
    echo("Ctrl-C stops the server and lets running runs finish", err=True)
