"""The world's tools as tools of smolagents agents, which call them one at a time and from any thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import cache
from typing import Any, Final

from pydantic import JsonValue
from smolagents import Tool

from coa.tools.base import Tool as CoaTool
from coa.tools.base import ToolContext, call_tool
from coa.tools.registry import open_tools
from coa.trajectory.types import Task
from coa.worlds.serving import open_world

_CHARACTERS: Final = 4000
_TIMEOUT_S: Final = 60.0


class Workshop:
    """A world, served and with its tools open, in a thread that lives as long as the process."""

    def __init__(self, world: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="coa-world")
        self._thread.start()
        self._tools = asyncio.run_coroutine_threadsafe(self._open(world), self._loop).result()

    async def _open(self, world: str) -> Mapping[str, CoaTool]:
        self._stack = AsyncExitStack()
        opened = await self._stack.enter_async_context(open_world(world))
        box = await self._stack.enter_async_context(open_tools([*opened.tools, "code"]))
        return box.tools

    def call(self, name: str, arguments: Mapping[str, JsonValue], task: Task) -> str:
        call = call_tool(
            self._tools[name], arguments, ToolContext(task), max_characters=_CHARACTERS, timeout_s=_TIMEOUT_S
        )
        return asyncio.run_coroutine_threadsafe(call, self._loop).result().text

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._stack.aclose(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@cache
def workshop(world: str) -> Workshop:
    """The workshop of this process."""
    return Workshop(world)


class _WorldTool(Tool):  # type: ignore[misc]
    output_type = "string"
    skip_forward_signature_validation = True

    def __init__(self, shop: Workshop, task: Task) -> None:
        super().__init__()
        self._shop, self._task = shop, task

    def _call(self, **arguments: Any) -> str:
        return self._shop.call(self.name, arguments, self._task)


class TeamWebSearch(_WorldTool):
    name = "web_search"
    description = "Looks up pages by kind and name, such as 'city Velrick'. Several queries are separated by a bar."
    inputs = {"query": {"type": "string", "description": "The query."}}  # noqa: RUF012

    def forward(self, query: str) -> str:
        return self._call(text=query)


class TeamCrawlPage(_WorldTool):
    name = "crawl_page"
    description = "Opens pages by their addresses and gives the facts on them."
    inputs = {"urls": {"type": "array", "description": "Addresses such as k/Velrick."}}  # noqa: RUF012

    def forward(self, urls: list[str]) -> str:
        return self._call(items=list(urls))


class TeamCode(_WorldTool):
    name = "code"
    description = "Runs a Python program and gives what it prints."
    inputs = {"code": {"type": "string", "description": "The program."}}  # noqa: RUF012

    def forward(self, code: str) -> str:
        return self._call(code=code)
