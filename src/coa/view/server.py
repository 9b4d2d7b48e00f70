"""`coa view`: the viewer as a small web server on this machine.

with coa.view.open_viewer(["runs/"], port=0) as viewer:
    print(viewer.url)
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import uvicorn
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coa.addresses import VIEWER_PORT, folder_id
from coa.errors import ConfigError
from coa.view.api import failure, routes
from coa.view.index import IndexWriter
from coa.view.indexer import Indexer
from coa.view.places import existing, index_file
from coa.view.reading import Reader
from coa.view.run_folders import kind_of
from coa.web.listening import address, host_name, is_loopback, listen

log = logging.getLogger(__name__)
_CLOSING_S: Final = 1


def open_viewer(
    paths: Sequence[str | Path],
    *,
    host: str = "127.0.0.1",
    port: int = VIEWER_PORT,
    cache: str | Path | None = None,
    tokenizer: str | None = None,
) -> Viewer:
    """Create a viewer of files and folders. Use it in a `with` block, or call `run_forever`.

    It is called as `coa.view(...)`.

    Args:
        paths: Files and folders that coa wrote, or traces of teams.
        host: Address to listen on. It must be a loopback address, because the viewer has no keys.
        port: Port to listen on; 0 chooses a free one.
        cache: Folder of the index. Default: a folder in the user's cache.
        tokenizer: Tokenizer for the text of runs that have no sampled ids.

    Returns:
        The viewer, which does not listen yet.

    Raises:
        CoaError: A path does not exist, or the address is not a loopback address.
    """
    roots = existing(paths)
    index = index_file(roots, cache)
    if not is_loopback(host):
        raise ConfigError(
            f"the viewer has no keys, so it listens on this machine only, not on {host}",
            hint="forward a port (ssh -L 8090:localhost:8090), or write a static bundle with --bundle",
        )
    return Viewer(roots, host, port, index, tokenizer)


class Viewer:
    """A server of the viewer's pages. `coa.view` makes one."""

    def __init__(self, roots: Sequence[Path], host: str, port: int, index: Path, tokenizer: str | None) -> None:
        self._roots, self._host, self._port = roots, host, port
        self.index = index
        IndexWriter(self.index).close()  # so that there is something to read, and a wrong --cache is refused now
        self._reader = Reader(self.index, [str(root) for root in roots], tokenizer=tokenizer)
        self._indexer = Indexer(self.index, roots)
        self._socket: socket.socket | None = None
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        if self._socket is None:
            raise ConfigError("the viewer does not listen yet", hint="use it in a block: with coa.view(...) as viewer")
        return address(self._host, self._socket)

    @property
    def start(self) -> str:
        """The address to open first: of the run, if a single run folder is viewed, else the list of runs."""
        if len(self._roots) == 1 and self._roots[0].is_dir():
            names = {entry.name for entry in self._roots[0].iterdir()}
            if kind_of(self._roots[0], names) not in (None, "run", "serve"):
                return f"{self.url}/#/folder/{folder_id(self._roots[0])}"
        return self.url

    def run_forever(self, on_ready: Callable[[Viewer], None] | None = None) -> None:
        """Show the runs until Ctrl-C. Call it from the main thread."""
        self._socket = listen(self._host, self._port)
        with self._indexer:
            try:
                asyncio.run(self._serve(lambda: on_ready(self) if on_ready is not None else None))
            except KeyboardInterrupt:
                pass
            finally:
                self._reader.close()

    def __enter__(self) -> Self:
        self._socket = listen(self._host, self._port)
        self._indexer.__enter__()
        started = threading.Event()
        self._thread = threading.Thread(target=self._in_thread, args=(started,), name="coa-view", daemon=True)
        self._thread.start()
        started.wait()
        return self

    def _in_thread(self, started: threading.Event) -> None:
        try:
            asyncio.run(self._serve(started.set))
        finally:
            started.set()  # also if it could not start: nobody must wait for ever

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.should_exit = True
        if self._thread is not None:
            self._thread.join()
        self._indexer.__exit__()
        self._reader.close()

    async def _serve(self, on_ready: Callable[[], None]) -> None:
        assert self._socket is not None
        with self._socket:
            app = Guard(Router(routes(self._reader), redirect_slashes=False), self._host)
            self._server = _Uvicorn(app, self._reader, on_ready)
            await self._server.serve(sockets=[self._socket])


class _Uvicorn(uvicorn.Server):
    def __init__(self, app: ASGIApp, reader: Reader, on_ready: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app, ws="none", lifespan="off", log_config=None, access_log=False, server_header=False,
                proxy_headers=False, timeout_graceful_shutdown=_CLOSING_S,
            )
        )  # fmt: skip
        self._reader, self._on_ready = reader, on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._reader.is_closing = True  # open pages follow the index, and would be cut off with an error
        await super().shutdown(sockets)


class Guard:
    """Only reads, and only for pages of this server: a page of another site could otherwise read the runs through a
    host name of its own that resolves to 127.0.0.1."""

    def __init__(self, app: ASGIApp, host: str) -> None:
        self._app, self._names = app, {"localhost", host.lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        response = self._refusal(Request(scope))
        scope["app"] = self._app  # the router then raises for a wrong path instead of answering in plain text
        if response is not None:
            await response(scope, receive, _sniffed(send))
            return
        try:
            await self._app(scope, receive, _sniffed(send))
        except HTTPException as error:
            await failure(error.status_code, f"there is nothing at {scope['path']}")(scope, receive, _sniffed(send))

    def _refusal(self, request: Request) -> Response | None:
        host = host_name(request.headers.get("host", ""))
        if host not in self._names and not is_loopback(host):
            return failure(421, f"the host {host!r} is not served here")
        if request.method not in ("GET", "HEAD"):
            return failure(405, "the viewer only reads")
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return failure(403, "pages of other sites may not read the runs")
        return None


def _sniffed(send: Send) -> Send:
    """With the header that keeps browsers from guessing what an answer is."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], (b"x-content-type-options", b"nosniff")]}
        await send(message)

    return sending
