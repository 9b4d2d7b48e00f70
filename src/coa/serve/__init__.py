"""Serve: the agent behind an API. Open Responses, Chat Completions, MCP, and a web page over one service.

with coa.serve(coa.ServeConfig(run=coa.RunConfig(model="nano"))) as server:
    print(server.url)

Settings and keys need no package of the extra `serve`; the server itself is imported on first use.
"""

import sys
from typing import TYPE_CHECKING

from coa.errors import not_installed
from coa.serve.config import ServeConfig
from coa.stage import Stage

if TYPE_CHECKING:
    from coa.serve.server import AgentServer, serve

__all__ = ["AgentServer", "ServeConfig", "serve"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from coa.serve import server
    except ImportError as error:
        raise (not_installed(error) or error) from error
    return getattr(server, name)


sys.modules[__name__].__class__ = Stage
