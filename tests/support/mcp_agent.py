"""An MCP server on stdio around a model that thinks, and that prints: `python -m support.mcp_agent STATE OUT`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from coa.models.base import Context, Generation, OnText, Sampling
from coa.runtime import RunConfig
from coa.serve import ServeConfig, serve_mcp
from support.mcp_client import Thinker


class Talker(Thinker):
    async def generate(
        self, context: Context, *, stop: Sequence[str], sampling: Sampling, on_text: OnText = None
    ) -> Generation:
        print("a line that no client may see")
        return await super().generate(context, stop=stop, sampling=sampling, on_text=on_text)


if __name__ == "__main__":
    run = RunConfig(model="http://127.0.0.1:9", profile="nano")
    config = ServeConfig(run=run, name="agent", state=Path(sys.argv[1]), heartbeat_s=0.1)
    serve_mcp(config, out=sys.argv[2], models={"agent": Talker()})
