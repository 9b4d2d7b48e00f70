"""`coa tools`: which tools there are, and one of them tried by hand. Also what other commands say about their tools."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coa.errors import ToolError
    from coa.tools import Observation
    from coa.trajectory import Task

tools = typer.Typer(help="List the tools, or try one by hand.", no_args_is_help=True)


_MCP = typer.Option(help="All tools of an MCP server: its command in quotes, or its URL. Repeatable.")


@tools.command("list")
def list_tools(
    mcp: Annotated[list[str] | None, _MCP] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Every tool that can be opened by name, whether it works here, and if not, how to fix it."""
    from coa.cli.terminal import printable, show_warnings
    from coa.tools.registry import declarations

    show_warnings()
    rows = [(declared, declared.missing()) for declared in declarations().values()]
    added = _of_mcp(mcp or [])
    if as_json:
        import orjson

        listed = [
            {
                "name": declared.name,
                "about": declared.about,
                "works": missing is None,
                "detail": None if missing is None else missing.message,
                "hint": None if missing is None else missing.hint,
            }
            for declared, missing in rows
        ]
        listed += [{"name": name, "about": about, "works": True, "detail": None, "hint": None} for name, about in added]
        typer.echo(orjson.dumps(listed, option=orjson.OPT_INDENT_2))
        return
    for declared, missing in rows:
        typer.echo(f"{'ok' if missing is None else 'no':>4}  {declared.name:<18} {declared.about}")
        if missing is not None:
            typer.echo(f"      {missing.message}" + (f"\n      hint: {missing.hint}" if missing.hint else ""))
    for name, about in added:
        typer.echo(f"  ok  {name:<18} {printable(about)}")


@tools.command("call")
def call(
    name: Annotated[str, typer.Argument(help="The tool's name, as in `coa tools list` or in --tool.")],
    argument: Annotated[str, typer.Argument(help="What the model would write between the tags; - reads stdin.")],
    tool: Annotated[
        list[str] | None, typer.Option(help="name=setting, or name=module:factory for one of your own.")
    ] = None,
    mcp: Annotated[list[str] | None, _MCP] = None,
    question: Annotated[str, typer.Option(help="The task's question, for tools that read with a goal.")] = "",
    file: Annotated[list[str] | None, typer.Option(help="A file of the task. Repeatable.")] = None,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds, if less than the tool's own.")] = 600.0,
    max_characters: Annotated[int, typer.Option(min=100, help="Longer answers are cut from the middle.")] = 20_000,
    as_json: Annotated[bool, typer.Option("--json", help="Print the observation as JSON.")] = False,
) -> None:
    """Call one tool as a run would, and print its observation."""
    import asyncio

    from coa.cli.terminal import printable, show_warnings
    from coa.errors import ToolError
    from coa.tools import ToolContext, call_tool
    from coa.tools.registry import declarations, open_tools
    from coa.trajectory import Reading, Task
    from coa.trajectory.shapes import read

    show_warnings()
    text = sys.stdin.read() if argument == "-" else argument
    given = list(tool or [])
    known = not mcp or name in declarations()
    if known and not any(item.partition("=")[0] == name for item in given):
        given.append(name)
    context = ToolContext(Task(id="call", question=question or text, files=tuple(file or ())))

    async def go() -> Observation:
        async with open_tools(given, mcp=mcp or []) as box:
            if name not in box.tools:
                raise ToolError(f"there is no tool named {name!r}", hint=f"use one of {', '.join(box.tools)}")
            chosen = box.tools[name]
            reading = read(chosen.shape, text)
            if not isinstance(reading, Reading):
                raise ToolError(f"the argument could not be read: {reading.message}")
            return await call_tool(chosen, reading.arguments, context, max_characters=max_characters, timeout_s=timeout)

    observation = asyncio.run(go())
    if as_json:
        import orjson

        typer.echo(orjson.dumps({"text": observation.text, "ok": observation.ok, "meta": dict(observation.meta)}))
    else:
        typer.echo(printable(observation.text))
    if not observation.ok:
        raise typer.Exit(1)


def _of_mcp(places: list[str]) -> list[tuple[str, str]]:
    """Name and description of each tool of the MCP servers."""
    import asyncio

    from coa.tools.registry import open_tools

    async def go() -> list[tuple[str, str]]:
        async with open_tools(mcp=places) as box:
            return [(name, tool.about) for name, tool in box.tools.items()]

    return asyncio.run(go()) if places else []


def check_files(tasks: Sequence[Task], given: Sequence[str], *, named_by_hand: bool) -> None:
    """Whether the files of the tasks are there: an error for a file just named, a warning for rows of a data set."""
    from coa.errors import ToolError
    from coa.tools.task_files import TaskFiles

    settings = dict(item.partition("=")[::2] for item in given)
    folder = settings.get("read_file", "")
    if folder and not Path(folder).is_dir():
        return  # a tool of one's own, or one that will say itself what is wrong with its folder
    files = TaskFiles(folder) if folder else TaskFiles.from_environment(os.environ)
    lacking: list[ToolError] = []
    for task in tasks:
        try:
            files.check(task)
        except ToolError as error:
            lacking.append(error)
    if lacking and named_by_hand:
        raise lacking[0]
    if lacking:
        told = f"{len(lacking)} of {len(tasks)} tasks have a file that cannot be read; the first: {lacking[0].message}"
        typer.echo(f"{told}; hint: {lacking[0].hint}", err=True)


def tell_absent(absent: Mapping[str, ToolError]) -> None:
    """A line on stderr for each tool that the profile calls and that is not to be had here."""
    for name, error in absent.items():
        hint = f"; {error.hint}" if error.hint else ""
        typer.echo(f"without {name}: {error.message}{hint}", err=True)
