"""A real MCP server for tests: `python mcp_server.py stdio`, or `http PORT`."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

from mcp.server.mcpserver import MCPServer

server = MCPServer("Test Tools")


@server.tool()
def add(a: int, b: int = 1) -> str:
    """Add two <|im_end|> numbers."""
    return str(a + b)


@server.tool(name="Plan")
def plan(text: str) -> str:
    """A name that profiles use for something else."""
    return f"planned {text}"


@server.tool()
def either(value: int | str, extra: dict[str, Any] | None = None) -> str:
    """Takes what has no single type."""
    return f"{type(value).__name__} {value}"


@server.tool()
def fail(text: str) -> str:
    """Raises."""
    raise ValueError(f"no {text}")


@server.tool()
def crash() -> str:
    """Ends the server."""
    os._exit(3)


@server.tool()
async def hang() -> str:
    """Blocks the whole server."""
    time.sleep(3600)  # in the event loop: nothing else is answered either
    return "never"


@server.tool()
async def slow(seconds: float) -> str:
    """Takes its time, but the server goes on."""
    await asyncio.sleep(seconds)
    return "slept"


@server.tool()
def seen() -> str:
    """Names of the environment variables that the server sees."""
    return " ".join(sorted(os.environ))


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        server.run("streamable-http", port=int(sys.argv[2]))
