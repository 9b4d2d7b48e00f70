"""Serve: the agent behind an API. Open Responses, Chat Completions, MCP, and a web page over one service.

with coa.serve(coa.ServeConfig(run=coa.RunConfig(model="nano"))) as server:
    print(server.url)

Settings and keys need no package of the extra `serve`; the server itself is imported on first use.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from coa.errors import not_installed
from coa.serve.config import ServeConfig
from coa.stage import Stage

if TYPE_CHECKING:
    from coa.serve.mcp import serve_mcp
    from coa.serve.server import AgentServer, serve

__all__ = ["AgentServer", "ServeConfig", "serve", "serve_mcp"]
_HOMES = {"AgentServer": "coa.serve.server", "serve": "coa.serve.server", "serve_mcp": "coa.serve.mcp"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        home = import_module(_HOMES[name])
    except ImportError as error:
        raise (not_installed(error) or error) from error
    return getattr(home, name)


sys.modules[__name__].__class__ = Stage
