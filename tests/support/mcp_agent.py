"""An MCP server on stdio around a model that thinks, and that prints: `python -m support.mcp_agent STATE OUT`."""

from __future__ import annotations

import sys
from pathlib import Path

from coa.runtime import RunConfig
from coa.serve import ServeConfig, serve_mcp
from support.mcp_client import Thinker


class Talker(Thinker):
    async def generate(self, *context: object, **options: object) -> object:  # type: ignore[override]
        print("a line that no client may see")
        return await super().generate(*context, **options)  # type: ignore[arg-type]


if __name__ == "__main__":
    run = RunConfig(model="http://127.0.0.1:9", profile="nano")
    config = ServeConfig(run=run, name="agent", state=Path(sys.argv[1]), heartbeat_s=0.1)
    serve_mcp(config, out=sys.argv[2], models={"agent": Talker()})
