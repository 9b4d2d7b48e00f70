"""`coa mcp`: agents as an MCP server, for assistants on a desktop and other MCP clients."""

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

_http = partial(typer.Option, rich_help_panel="HTTP")


def mcp(
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
    http: Annotated[
        bool, _http("--http", help="Listen on a port for any number of clients, not on stdin and stdout for one.")
    ] = False,
    host: Annotated[str | None, _http(help="Address to listen on. Default: 127.0.0.1.")] = None,
    port: Annotated[int | None, _http(min=0, max=65535, help="Port to listen on. Default: 8080.")] = None,
    keys_file: Annotated[
        Path | None, _http(help="File with the hashed keys of clients, made by coa serve --add-key.")
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
    """Serve agents to MCP clients as a tool named ask, on stdin and stdout or over HTTP."""
    from coa.cli.configuring import resolve, run_flags
    from coa.cli.progress import terminal_progress
    from coa.cli.terminal import show_warnings
    from coa.serve.config import ServeConfig

    show_warnings()
    given = {
        **run_flags("run.", model=model, model_name=model_name, profile=profile, world=world, tool=tool, mcp=mcp,
                    temperature=temperature, seed=seed, budget=budget),
        "host": host, "port": port, "keys_file": keys_file,
    }  # fmt: skip
    if not http and any(value is not None for value in (host, port, keys_file)):
        raise misused("--host, --port and --keys-file need --http")
    config = resolve(ServeConfig, agents, settings, given, show_settings=show_settings, dry_run=dry_run)
    if config.agents and any(key.startswith("run.") and value is not None for key, value in given.items()):
        raise misused("the agents are in the file; options such as --model belong to a single agent")
    from coa.serve import serve, serve_mcp

    if http:
        only_mcp = config.model_copy(update={"mcp": True, "api": False, "page": False})
        serve(only_mcp, out=out, progress=terminal_progress()).run_forever(_announce)
    else:
        serve_mcp(config, out=out, progress=terminal_progress())


def _announce(server: AgentServer) -> None:

    assert server.service is not None
    echo(f"serving {', '.join(server.service.agents)} at {server.url}/mcp")
    echo("Ctrl-C stops the server and lets running runs finish", err=True)
