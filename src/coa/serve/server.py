"""`serve`: the service behind an HTTP server, in this thread or in one of its own.

with coa.serve(coa.ServeConfig(run=coa.RunConfig(model="nano"), port=0)) as server:
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none")
"""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import socket
import threading
from asyncio.events import TimerHandle
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext, suppress
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import orjson
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import HANDLED_SIGNALS

from coa.errors import ConfigError
from coa.models.base import Model
from coa.progress import Progress
from coa.serve.api_error import ApiError
from coa.serve.app import build_app
from coa.serve.config import ServeConfig
from coa.serve.keys import Keys
from coa.serve.service import Service, open_service
from coa.serve.viewing import MountedViewer, shown_folders
from coa.tools import Tool
from coa.web.listening import address, is_loopback, listen

log = logging.getLogger(__name__)
T = TypeVar("T")
_FILES: Final = 16384
"""Number of open files to ask for: every connection is one."""
_HEADER_BYTES: Final = 64 << 10
"""Size of the headers of a request, up to one more read of the socket."""
_CLOSING_S: Final = 3
"""Time for answers to be sent after all runs have ended."""


def serve(
    config: ServeConfig | None = None,
    *,
    out: str | Path | None = None,
    models: Mapping[str, Model] | None = None,
    tools: Mapping[str, Mapping[str, Tool]] | None = None,
    progress: Progress | None = None,
) -> AgentServer:
    """Create a server for one or several agents. Use it in a `with` block, or call `run_forever`.

    Args:
        config: Agents, address, keys and limits.
        out: Folder or .jsonl file to which every run is appended.
        models: Model objects by the name of the agent, which replace those that `config` names.
        tools: Tool objects by their tag, for each name of an agent, besides those that `config` names.
        progress: Shows what is being opened.

    Returns:
        The server, which does not listen yet.

    Raises:
        CoaError: A setting is wrong, or the server would be public without keys.
    """
    return AgentServer(config or ServeConfig(), out=out, models=models, tools=tools, progress=progress)


class AgentServer:
    """A server of agents: Responses API, Chat Completions API, MCP and web page. `coa.serve` makes one."""

    def __init__(
        self,
        config: ServeConfig,
        *,
        out: str | Path | None = None,
        models: Mapping[str, Model] | None = None,
        tools: Mapping[str, Mapping[str, Tool]] | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.config = config
        self._keys = Keys.of(config)
        refuse_public_without_keys(config, self._keys)
        self._out, self._models, self._tools, self._progress = out, models, tools, progress
        self._socket: socket.socket | None = None
        self._uvicorn: _Uvicorn | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failure: BaseException | None = None
        self.service: Service | None = None
        """While it runs. It belongs to the thread of the server."""

    @property
    def url(self) -> str:
        """Without `/v1`."""
        if self._socket is None:
            raise ConfigError("the server does not listen yet", hint="use it in a block: with coa.serve(...) as server")
        return address(self.config.host, self._socket)

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread of the server, where its service lives, and wait for the result."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def run_forever(self, on_ready: Callable[[AgentServer], None] | None = None) -> None:
        """Serve until SIGINT or SIGTERM, then let running runs finish. Call it from the main thread."""
        self._bind()

        def ready(server: AgentServer) -> None:
            # What is there now stays until the end. Without this, each full garbage collection would walk through it.
            gc.collect()
            gc.freeze()
            if on_ready is not None:
                on_ready(server)

        asyncio.run(self._serve(ready, signals=True))

    def __enter__(self) -> Self:
        self._bind()
        started = threading.Event()
        self._thread = threading.Thread(target=self._in_thread, args=(started,), name="coa-serve", daemon=True)
        self._thread.start()
        started.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._uvicorn is not None:
            self._uvicorn.should_exit = True
        if self._thread is not None:
            self._thread.join()
        if self._failure is not None and kind is None:
            raise self._failure

    def _in_thread(self, started: threading.Event) -> None:
        try:
            asyncio.run(self._serve(lambda _: started.set(), signals=False))
        except BaseException as error:
            self._failure = error
        finally:
            started.set()

    def _bind(self) -> None:
        """Take the port before a model is loaded."""
        self._socket = listen(self.config.host, self.config.port)
        _allow_files(self.config.max_connections)

    async def _serve(self, on_ready: Callable[[AgentServer], None] | None, *, signals: bool) -> None:
        self._loop = asyncio.get_running_loop()
        assert self._socket is not None
        with self._socket:
            async with open_service(
                self.config, out=self._out, models=self._models, tools=self._tools, progress=self._progress
            ) as service:
                self.service = service
                shown = shown_folders(self.config, Path(self._out) if self._out else None, keys=self._keys.required)
                viewer = MountedViewer(shown)
                app = build_app(service, self._keys, viewer)
                self._uvicorn = server = _Uvicorn(app, service, viewer, lambda: on_ready(self) if on_ready else None)
                with server.handling_signals() if signals else nullcontext(), closing(viewer):
                    await server._serve(sockets=[self._socket])


class _Uvicorn(uvicorn.Server):
    """Lets runs finish before connections are closed."""

    def __init__(self, app: ASGIApp, service: Service, viewer: MountedViewer, on_ready: Callable[[], None]) -> None:
        limits = service.config

        class Connection(_Connection):
            max_connections = limits.max_connections
            header_timeout_s = limits.header_timeout_s

        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=limits.idle_timeout_s,  # type: ignore[arg-type]
                timeout_graceful_shutdown=_CLOSING_S,
            )
        )
        self._service, self._viewer, self._on_ready = service, viewer, on_ready

    @contextmanager
    def handling_signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM end the server; a second SIGINT does not wait for runs. Uvicorn's own way would end the
        process with the same signal as soon as connections are closed, before runs are saved and tools closed."""
        loop = asyncio.get_running_loop()
        for sign in HANDLED_SIGNALS:
            loop.add_signal_handler(sign, self.handle_exit, sign, None)
        try:
            yield
        finally:
            for sign in HANDLED_SIGNALS:
                loop.remove_signal_handler(sign)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        draining = asyncio.create_task(self._service.drain(self._service.config.shutdown_s))
        while not draining.done() and not self.force_exit:
            await asyncio.wait({draining}, timeout=0.1)
        if not draining.done():
            draining.cancel()
            await self._service.drain(0)
        self._viewer.stop()
        await super().shutdown(sockets)


class _Connection(HttpToolsProtocol):
    """A connection that must send its headers in time and in short, and one of a limited number."""

    max_connections: int
    header_timeout_s: float
    _header_timer: TimerHandle | None = None
    """Runs while headers are expected."""
    _header_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            transport.abort()
            return
        self._expect_headers()

    def data_received(self, data: bytes) -> None:
        if self._header_timer is None and (self.cycle is None or self.cycle.response_complete):
            self._expect_headers()
        super().data_received(data)
        if self._header_timer is not None:
            self._header_bytes += len(data)
            if self._header_bytes > _HEADER_BYTES:
                self._headers_came()
                self._refuse(
                    ApiError(431, f"the headers are larger than {_HEADER_BYTES:,} bytes", code="large_headers")
                )

    def on_headers_complete(self) -> None:
        self._headers_came()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers_came()
        super().connection_lost(exc)

    def _expect_headers(self) -> None:
        self._header_timer = self.loop.call_later(self.header_timeout_s, self._too_slow)

    def send_400_response(self, msg: str) -> None:
        """For what is not HTTP."""
        self._refuse(ApiError(400, msg, code="invalid_http"))

    def _refuse(self, error: ApiError) -> None:
        """Answer a request that has not become one, and end the connection."""
        if self.transport.is_closing():
            return
        body = orjson.dumps(error.body())
        head = f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\ncontent-type: application/json\r\n"
        rest = f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write((head + rest).encode() + body)
        self.transport.close()

    def _headers_came(self) -> None:
        self._header_bytes = 0
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _too_slow(self) -> None:
        self._header_timer = None
        if not self.transport.is_closing():
            self.transport.abort()


def refuse_public_without_keys(config: ServeConfig, keys: Keys) -> None:
    """Without a key, only this machine may reach the server, unless the settings say that everybody may."""
    if keys.required or config.public or is_loopback(config.host):
        return
    raise ConfigError(
        f"listening on {config.host} without a key would let anybody use this agent",
        hint=f"set {config.keys_env}, or make a key: coa serve --add-key NAME --keys-file keys.txt",
    )


def _allow_files(connections: int) -> None:
    """Raise the limit on open files as far as this user may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(_FILES, 2 * connections)
    if soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))


__all__ = ["AgentServer", "serve"]
