"""MCP over stdin and stdout, as assistants on a desktop start it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any, Final

from mcp.server.stdio import stdio_server

from coa.models.base import Model
from coa.progress import Progress
from coa.serve.config import ServeConfig
from coa.serve.mcp.server import mcp_server
from coa.serve.service import Service, open_service
from coa.tools import Tool

log = logging.getLogger(__name__)
_CHUNK: Final = 1 << 16


def serve_mcp(
    config: ServeConfig | None = None,
    *,
    out: str | Path | None = None,
    models: Mapping[str, Model] | None = None,
    tools: Mapping[str, Mapping[str, Tool]] | None = None,
    progress: Progress | None = None,
) -> None:
    """Serve the client at the other end of stdin and stdout until it closes stdin. Runs that go on are then cancelled.

    SIGTERM has the same effect. The client is answered at once, while models are still being loaded; its questions wait
    for them. Meanwhile, whatever else writes to stdout writes to stderr. Call it from the main thread.

    `out` is a folder or a .jsonl file to which every run is appended. `models` and `tools`, by the name of the agent,
    are objects of the caller's that take the place of what the config names.
    """
    chosen, stopped = config or ServeConfig(), False

    async def work() -> None:
        def stop() -> None:
            nonlocal stopped
            stopped = True
            task.cancel()

        task = asyncio.ensure_future(
            _serve(chosen, partial(open_service, chosen, out=out, models=models, tools=tools, progress=progress))
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
        try:
            await task
        except asyncio.CancelledError:
            if not stopped:
                raise

    asyncio.run(work())


async def _serve(config: ServeConfig, open_: Callable[[], AbstractAsyncContextManager[Service]]) -> None:
    opened: asyncio.Future[Service] = asyncio.get_running_loop().create_future()
    server = mcp_server(config, opened)

    async def own_service() -> None:
        async with open_() as service:
            opened.set_result(service)
            await asyncio.Event().wait()

    lines: Any = _lines(_private_stdin(), config.max_body_bytes)
    try:
        async with stdio_server(stdin=lines) as (read, write):
            work = [
                asyncio.create_task(server.run(read, write, server.create_initialization_options())),
                asyncio.create_task(own_service()),
            ]
            try:
                await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in work:
                    task.cancel()
                ends = await asyncio.gather(*work, return_exceptions=True)
            if failures := [end for end in ends if isinstance(end, Exception)]:
                raise failures[0]
    except BaseExceptionGroup as group:  # of the streams' task group, around the one error that matters
        error = _first(group)
        if not isinstance(error, BrokenPipeError):  # the client has gone
            raise error from None


def _private_stdin() -> int:
    """A descriptor for what the client writes. Descriptor 0 is empty from now on: no child may read the protocol."""
    private, empty = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    return private


async def _lines(descriptor: int, longest: int) -> AsyncIterator[bytes]:
    """What arrives there, line by line. A thread that the end of the process does not wait for reads it, because a read
    cannot be cancelled."""
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(limit=longest)

    def read() -> None:
        try:
            while data := os.read(descriptor, _CHUNK):
                loop.call_soon_threadsafe(reader.feed_data, data)
            loop.call_soon_threadsafe(reader.feed_eof)
        except (OSError, RuntimeError):  # the loop is closed, or there is no stdin
            pass

    threading.Thread(target=read, name="stdin", daemon=True).start()
    while True:
        try:
            line = await reader.readline()
        except ValueError:
            log.error("a message is longer than %d bytes and was left out", longest)
            continue
        if not line:
            return
        yield line


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
