"""A real server on a free loopback port, in a thread, around a scripted model or any other."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coa.models.base import Context, Model
from coa.models.scripted import ScriptedModel
from coa.runtime import RunConfig
from coa.serve.config import ServeConfig
from coa.serve.server import AgentServer, serve
from coa.tools import Observation, Tool, ToolContext
from coa.trajectory import Form, Shape

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

AGENT = "agent"
"""Name of the agent that `served` offers, unless `config` has others."""
SEARCH = "<think>I look it up.</think>\n<web_search>tallest tower</web_search>"
ANSWER = "<think>The page says it.</think>\n<answer>The Vell tower.</answer>"


class PageTool:
    """A search that always finds the same page."""

    about, shape, timeout_s = "looks a query up", Shape(form=Form.LINE), 5.0

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> Observation:
        return Observation("1. Vell tower: the tallest tower. https://towers.example/vell")


class ServedAgent:
    def __init__(self, server: AgentServer, out: Path) -> None:
        self.server, self.out = server, out
        self._client: OpenAI | None = None

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def client(self) -> OpenAI:
        from openai import OpenAI

        if self._client is None:
            self._client = OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)
        return self._client

    @property
    def async_client(self) -> AsyncOpenAI:
        """To be closed by the caller."""
        from openai import AsyncOpenAI

        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)


@contextmanager
def served(
    script: Sequence[str | Exception] | Callable[[Context], str | Exception] | None = (SEARCH, ANSWER),
    *,
    model: Model | None = None,
    models: Mapping[str, Model] | None = None,
    tools: Mapping[str, Tool] | None = None,
    config: Mapping[str, Any] | None = None,
    state: Path | None = None,
) -> Iterator[ServedAgent]:
    """One agent named `AGENT` of the profile `nano`, whose model follows the script; `config` are further settings.

    Without a script, the agent has the model that `config` names."""
    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, Any] = {
            "run": RunConfig(model="http://127.0.0.1:9", profile="nano"), "name": AGENT, "port": 0, "shutdown_s": 5.0,
            "state": state or Path(folder) / "state", **(config or {}),
        }  # fmt: skip
        chosen = ServeConfig.model_validate(settings)
        names = list(chosen.agents) or [AGENT]
        if script is not None:
            models = models or dict.fromkeys(names, model or ScriptedModel(script))
        used = dict.fromkeys(names, tools if tools is not None else {"web_search": PageTool()})
        out = Path(folder) / "runs"
        with serve(chosen, out=out, models=models, tools=used) as server, closing(ServedAgent(server, out)) as agent:
            yield agent
