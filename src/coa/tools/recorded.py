"""Tools that answer from a cache. A recorded tool asks once and keeps the answer; a replayed tool never asks."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from coa.choices import CacheMode
from coa.errors import StoreError, ToolError
from coa.tools import base
from coa.tools.base import Observation, Tool, ToolContext, veiled
from coa.tools.cache import Cache, Described, Keys, keys_of
from coa.tools.registry import Environment, Toolbox, open_tools

log = logging.getLogger(__name__)


@asynccontextmanager
async def open_cached_tools(
    given: Sequence[str] = (),
    *,
    wanted: Iterable[str] = (),
    mode: CacheMode = CacheMode.OFF,
    file: str | Path | None = None,
    environment: Environment = os.environ,
    mcp: Sequence[str] = (),
    tags: Collection[str] = (),
) -> AsyncIterator[Toolbox]:
    """`open_tools` with a cache around each. In a replay nothing is opened: the tools are those of the recording."""
    if mode is CacheMode.OFF:
        async with open_tools(given, wanted=wanted, environment=environment, mcp=mcp, tags=tags) as box:
            yield box
        return
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "coa" / "tools.sqlite"
    cache = Cache(file or default, read_only=mode is CacheMode.REPLAY)
    settings = {name: setting for name, _, setting in (item.partition("=") for item in given)}
    try:
        if mode is CacheMode.REPLAY:
            names = [*settings, *wanted, *(name for name in cache.names() if _is_of(cache.described(name), mcp))]
            yield replayed(cache, names, settings)
            return

        def wrap(name: str, tool: Tool) -> Tool:
            return RecordedTool(name, tool, cache, settings.get(name, ""))

        async with open_tools(given, wanted=wanted, environment=environment, wrap=wrap, mcp=mcp, tags=tags) as box:
            yield box
    finally:
        cache.close()


def _is_of(known: Sequence[Described], mcp: Sequence[str]) -> bool:
    """Whether it was recorded as a tool of one of these MCP servers."""
    places = {veiled(place) for place in mcp}
    return any(isinstance(one.settings, dict) and one.settings.get("mcp") in places for one in known)


def replayed(cache: Cache, names: Iterable[str], settings: Mapping[str, str] | None = None) -> Toolbox:
    """The recorded tools, each as it was recorded with the setting that the user gives now."""
    box = Toolbox()
    for name in dict.fromkeys(names):
        if known := cache.described(name):
            box.tools[name] = ReplayedTool(name, _meant(name, known, (settings or {}).get(name, "")), cache)
        else:
            box.absent[name] = ToolError(f"{cache.path} holds no recording of it")
    return box


def _meant(name: str, known: Sequence[Described], setting: str) -> Sequence[Described]:
    """The recordings with this setting. If there are none, all of them, with a warning unless there is only one."""
    if meant := [one for one in known if one.given == veiled(setting)]:
        return meant
    if setting:
        log.warning("%s was not recorded with the setting %r; what other settings gave is replayed", name, setting)
    elif len({one.given for one in known}) > 1:
        log.warning("%s was recorded with several settings; the latest that has an answer is replayed", name)
    return known


class ReplayedTool:
    """A tool of the recording."""

    def __init__(self, name: str, known: Sequence[Described], cache: Cache) -> None:
        self._name, self._known, self._cache = name, known, cache
        self.about, self.shape, self.timeout_s = known[0].about, known[0].shape, known[0].timeout_s

    async def call(self, arguments: Mapping[str, JsonValue], context: ToolContext) -> Observation:
        for one in self._known:
            keys = keys_of(self._name, one, arguments, context)
            for key in (keys.failure, keys.task, keys.answer):
                if (found := self._cache.find(key)) is not None:
                    return _hit(found)
        text = f"error: this call of {self._name} is not in the recording, and nothing is looked up in a replay."
        return Observation(text, ok=False, meta={"error": "not_recorded"})


@dataclass
class _Flight:
    """A call under way, and the number of callers that wait for it."""

    task: asyncio.Task[Observation]
    waiting: int = 0


class RecordedTool:
    """A tool whose answers are kept. Two equal calls at the same time become one."""

    def __init__(self, name: str, tool: Tool, cache: Cache, setting: str = "") -> None:
        self._name, self._tool, self._cache = name, tool, cache
        self._described = Described.of(tool, veiled(setting))
        self._flights: dict[bytes, _Flight] = {}
        self.about, self.shape = tool.about, tool.shape
        self.timeout_s = tool.timeout_s + 5.0  # the tool's limit comes first, so that a time-out is recorded too
        cache.describe(name, self._described)

    async def call(self, arguments: Mapping[str, JsonValue], context: ToolContext) -> Observation:
        fingerprint = await base.fingerprint_of(self._tool, arguments, context)
        keys = keys_of(self._name, self._described, arguments, context, fingerprint)
        found = self._cache.find(keys.answer)
        live = found is None
        if found is None:
            found = await self._joined(keys, arguments, context)
        await self._note_failure(keys, arguments, found)
        if fingerprint and found.whole:
            await self._note_task(keys, arguments, found)
        return found if live else _hit(found)

    async def close(self) -> None:
        await base.close_tool(self._tool)

    async def _joined(self, keys: Keys, arguments: Mapping[str, JsonValue], context: ToolContext) -> Observation:
        flight = self._flights.get(keys.answer)
        if flight is None:
            flight = _Flight(asyncio.ensure_future(self._fetched(keys, arguments, context)))
            self._flights[keys.answer] = flight
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiting -= 1
            if not flight.waiting:  # finished, or nobody waits any more; the next caller starts a new one
                if self._flights.get(keys.answer) is flight:
                    del self._flights[keys.answer]
                flight.task.cancel()

    async def _fetched(self, keys: Keys, arguments: Mapping[str, JsonValue], context: ToolContext) -> Observation:
        limit = self._tool.timeout_s
        answer = await base.call_tool(self._tool, arguments, context, max_characters=sys.maxsize, timeout_s=limit)
        if not answer.whole:
            return answer
        with self._warning("an answer"):
            return await asyncio.to_thread(self._cache.keep, keys.answer, self._name, arguments, answer)
        return answer

    async def _note_failure(self, keys: Keys, arguments: Mapping[str, JsonValue], answer: Observation) -> None:
        with self._warning("a failure"):
            before = self._cache.find(keys.failure)
            if before is not None and before != answer:
                await asyncio.to_thread(self._cache.forget, keys.failure)
            if not answer.whole:
                await asyncio.to_thread(self._cache.keep, keys.failure, self._name, arguments, answer)

    async def _note_task(self, keys: Keys, arguments: Mapping[str, JsonValue], answer: Observation) -> None:
        """Keep the content of the task's file for the replay; the latest counts, since files change."""
        with self._warning("an answer"):
            if self._cache.find(keys.task) != answer:
                await asyncio.to_thread(self._cache.keep, keys.task, self._name, arguments, answer, replace=True)

    @contextmanager
    def _warning(self, what: str) -> Iterator[None]:
        """A cache that cannot be written must not end the run."""
        try:
            yield
        except StoreError as error:
            log.warning("%s of %s is not recorded: %s", what, self._name, error.message)


def _hit(found: Observation) -> Observation:
    return Observation(found.text, found.ok, {**found.meta, "cache": "hit"})
