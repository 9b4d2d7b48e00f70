"""One MCP server and its session, which a dedicated asyncio task owns.

The SDK opens and closes a session with task groups, which must happen in the same task, while calls come from many
tasks. A server that crashes or no longer answers is dropped, and the next call starts it again, up to three times.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import IO, Any, Final

import httpx2
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp import Tool as Declared
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult

from coa.errors import ToolError

log = logging.getLogger(__name__)
# It logs a traceback for each line of a server's output that is not JSON, and many servers print a greeting.
logging.getLogger("mcp.client.stdio").setLevel(logging.CRITICAL)

_RESTARTS: Final = 3
_HEALTH_S: Final = 5.0
_CLOSE_S: Final = 10.0
_TOOLS: Final = 200
"""More would not fit any prompt."""


class McpFailed(Exception):
    """The call gave no result; the message is written for the model to read."""


@dataclass
class _Session:
    client: Client
    tools: list[Declared]
    ending: asyncio.Event
    owner: asyncio.Task[None]


@dataclass(frozen=True)
class McpSettings:
    start_s: float = 30.0
    call_s: float = 60.0
    environment: Mapping[str, str] = field(default_factory=dict)
    """The variables that a started server gets besides PATH, HOME and the like; no others are passed on."""
    token: str = ""
    """Sent to a server that is given by URL."""


class McpServer:
    """`where` is a command to start, or the URL of a running server."""

    def __init__(self, where: str, settings: McpSettings | None = None) -> None:
        self.where, self.settings = where, settings or McpSettings()
        self._session: _Session | None = None
        self._opening = asyncio.Lock()
        self._starts = 0
        self._closed = False

    @property
    def name(self) -> str:
        """The name that the server gives itself, or a fallback."""
        info = self._session.client.server_info if self._session is not None else None
        return info.name if info is not None and info.name else "mcp"

    async def tools(self) -> list[Declared]:
        """The tools that the server declares. Raises ToolError if it cannot be started."""
        try:
            return (await self._open()).tools
        except McpFailed as error:
            hint = "try the command by hand, or check that the server runs"
            raise ToolError(f"--mcp {self.where!r}: {error}", hint=hint) from error

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> CallToolResult:
        session = await self._open()
        limit = self.settings.call_s
        try:
            async with asyncio.timeout(limit):
                return await session.client.call_tool(tool, dict(arguments))
        except TimeoutError as error:
            # It may be busy with this call, or hang altogether; only the latter is a reason to restart it.
            if not await self._answers(session):
                await self._drop(session)
            raise McpFailed(f"the MCP server gave no answer within {limit:g} seconds") from error
        except MCPError as error:
            if session.owner.done() or not await self._answers(session):
                await self._drop(session)
                raise McpFailed("the MCP server ended in the middle of the call") from error
            raise McpFailed(f"the MCP server refuses: {error.message[:500]}") from error
        except Exception as error:  # whatever a broken transport or a result that breaks the protocol raises
            await self._drop(session)
            why = f"{type(error).__name__}: {str(error)[:300]}"
            raise McpFailed(f"the MCP server's answer cannot be used ({why})") from error

    async def close(self) -> None:
        self._closed = True
        if self._session is not None:
            await self._drop(self._session)

    # ---- the session and its owner

    async def _open(self) -> _Session:
        async with self._opening:
            if self._session is not None and not self._session.owner.done():
                return self._session
            if self._closed:
                raise McpFailed("the MCP server is closed")
            if self._starts > _RESTARTS:
                raise McpFailed(f"the MCP server failed {self._starts} times and is not started again")
            self._starts += 1
            self._session = await self._start()
            return self._session

    async def _start(self) -> _Session:
        ready: asyncio.Future[tuple[Client, list[Declared]]] = asyncio.get_running_loop().create_future()
        ending = asyncio.Event()
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
            owner = asyncio.create_task(self._own(ready, ending, errors), name=f"mcp {self.where}")
            try:
                async with asyncio.timeout(self.settings.start_s):
                    client, tools = await asyncio.shield(ready)
            except BaseException as error:
                await _end(owner)
                if ready.done() and not ready.cancelled():
                    ready.exception()  # retrieved, so that asyncio does not warn that it was not
                if isinstance(error, TimeoutError):
                    raise McpFailed(f"it did not start within {self.settings.start_s:g} seconds") from error
                if not isinstance(error, Exception):
                    raise
                raise McpFailed(f"it cannot be opened ({_reason(error)}){_last_words(errors)}") from error
        return _Session(client, tools, ending, owner)

    async def _own(
        self, ready: asyncio.Future[tuple[Client, list[Declared]]], ending: asyncio.Event, errors: IO[str]
    ) -> None:
        """Open, hold and close the session, all in this task."""
        try:
            async with AsyncExitStack() as stack:
                client = await stack.enter_async_context(Client(await self._transport(stack, errors)))
                tools = await _all_tools(client)
                if not ready.done():
                    ready.set_result((client, tools))
                await ending.wait()
        except asyncio.CancelledError:
            ready.cancel()
            raise
        except BaseException as error:  # task groups wrap anything in groups
            if not ready.done():
                ready.set_exception(error if isinstance(error, Exception) else RuntimeError(_reason(error)))
            else:
                log.debug("the session with %s ended", self.where, exc_info=error)

    async def _transport(self, stack: AsyncExitStack, errors: IO[str]) -> Any:
        if self.where.startswith(("http://", "https://")):
            headers = {"Authorization": f"Bearer {self.settings.token}"} if self.settings.token else {}
            patience = httpx2.Timeout(10.0, read=self.settings.call_s + 5.0)
            http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=patience))
            return streamable_http_client(self.where, http_client=http)
        command, *arguments = shlex.split(self.where)
        environment = dict(self.settings.environment)
        parameters = StdioServerParameters(
            command=command, args=arguments, env=environment, encoding_error_handler="replace"
        )
        return stdio_client(parameters, errlog=errors)  # type: ignore[arg-type]

    async def _answers(self, session: _Session) -> bool:
        try:
            async with asyncio.timeout(_HEALTH_S):
                await session.client.list_tools(cache_mode="refresh")
            return True
        except Exception:  # any failure means the same
            return False

    async def _drop(self, session: _Session) -> None:
        if self._session is session:
            self._session = None
        session.ending.set()
        await _end(session.owner, patience_s=_CLOSE_S)


async def _all_tools(client: Client) -> list[Declared]:
    page = await client.list_tools()
    found = list(page.tools)
    while len(found) < _TOOLS and page.next_cursor is not None:
        page = await client.list_tools(cursor=page.next_cursor)
        found += page.tools
    return found[:_TOOLS]


async def _end(owner: asyncio.Task[None], *, patience_s: float = 0.0) -> None:
    """Wait for the owner to close its session; cancel it if that takes too long."""
    await asyncio.wait([owner], timeout=patience_s)
    if not owner.done():
        owner.cancel()
        await asyncio.wait([owner], timeout=_CLOSE_S)
    if owner.done():
        with suppress(asyncio.CancelledError):
            owner.exception()


def _reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message[:300]}" if message else type(error).__name__


def _last_words(errors: IO[str]) -> str:
    """The last line that the server wrote to standard error, which helps to see why it did not start."""
    errors.seek(0)
    words = errors.read(1 << 20).strip().splitlines()
    return f"; it says: {words[-1][:300]}" if words else ""
