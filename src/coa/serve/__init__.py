"""Serve: the agent behind an API. Open Responses, Chat Completions, MCP, and a web page over one service.

with coa.serve(coa.ServeConfig(run=coa.RunConfig(model="nano"))) as server:
    print(server.url)
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from coa.errors import ConfigError
from coa.serve.config import ServeConfig
from coa.stage import Stage

if TYPE_CHECKING:
    from coa.serve.server import AgentServer, serve

__all__ = ["AgentServer", "ServeConfig", "serve"]


def __getattr__(name: str) -> object:
    """What needs the packages of the extra `serve` is imported on first use."""
    if name not in ("AgentServer", "serve"):
        raise AttributeError(f"module 'coa.serve' has no attribute {name!r}")
    try:
        value: object = getattr(import_module("coa.serve.server"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("coa"):
            raise
        raise ConfigError(
            f"serving needs the package {error.name}", hint=f"{sys.executable} -m pip install 'chain-of-agents[serve]'"
        ) from error
    globals()[name] = value
    return value


sys.modules[__name__].__class__ = Stage
