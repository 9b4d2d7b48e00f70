"""`coa tools`: list the tools, or try one by hand."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from coa.cli.output import echo, echo_json, echo_text

if TYPE_CHECKING:
    from coa.tools import Observation

tools = typer.Typer(help="List the tools, or try one by hand.", no_args_is_help=True)
_MCP = typer.Option(help="MCP server whose tools to add: its command in quotes, or its URL. Repeatable.")


@tools.command("list")
def list_tools(
    mcp: Annotated[list[str] | None, _MCP] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List every tool that can be opened by name, whether it works on this machine, and if not, how to fix it."""
    from coa.cli.terminal import show_warnings
    from coa.tools.registry import declarations

    show_warnings()
    rows = [(declared.name, declared.about, declared.missing()) for declared in declarations().values()]
    rows += [(name, about, None) for name, about in _of_mcp(mcp or [])]
    if as_json:
        import orjson

        listed = [
            {"name": name, "about": about, "works": missing is None,
             "detail": missing and missing.message, "hint": missing and missing.hint}
            for name, about, missing in rows
        ]  # fmt: skip
        echo_json(orjson.dumps(listed, option=orjson.OPT_INDENT_2))
        return
    for name, about, missing in rows:
        echo(f"{'ok' if missing is None else 'no':>4}  {name:<18} {about}")
        if missing is not None:
            echo(f"      {missing.message}")
            if missing.hint:
                echo(f"      hint: {missing.hint}")


@tools.command("call")
def call(
    name: Annotated[str, typer.Argument(help="Name of the tool, as in `coa tools list` or in --tool.")],
    argument: Annotated[str, typer.Argument(help="Text that the model would write between the tags; - reads stdin.")],
    tool: Annotated[
        list[str] | None,
        typer.Option(help="Setting of a tool as name=setting, or name=module:factory for your own tool."),
    ] = None,
    mcp: Annotated[list[str] | None, _MCP] = None,
    question: Annotated[
        str, typer.Option(help="Question of the task, for tools that use it, such as crawl_page.")
    ] = "",
    file: Annotated[list[str] | None, typer.Option(help="File of the task. Repeatable.")] = None,
    timeout: Annotated[
        float, typer.Option(min=0, help="Time limit in seconds, if shorter than the limit of the tool.")
    ] = 600.0,
    max_characters: Annotated[
        int, typer.Option(min=100, help="Length above which an answer is cut in the middle.")
    ] = 20_000,
    as_json: Annotated[bool, typer.Option("--json", help="Print the observation as JSON.")] = False,
) -> None:
    """Call one tool as a run would, and print its observation."""
    import asyncio

    from coa.cli.terminal import show_warnings
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

        echo_json(orjson.dumps({"text": observation.text, "ok": observation.ok, "meta": dict(observation.meta)}))
    else:
        echo_text(observation.text)
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
