"""Serve: the agent behind an API. Open Responses, Chat Completions, MCP, and a web page over one service.

with coa.serve(coa.ServeConfig(run=coa.RunConfig(model="nano"))) as server:
    print(server.url)
"""

import sys

from coa.serve.config import ServeConfig
from coa.serve.server import AgentServer, serve
from coa.stage import Stage

__all__ = ["AgentServer", "ServeConfig", "serve"]

sys.modules[__name__].__class__ = Stage
