"""The proxy: forwards each request to the server as it came, and each response as the server sent it.

Bodies pass as bytes. A response is forwarded piece by piece as it arrives, compressed or not, and a copy of the pieces
goes to the log when the response has ended. Nothing is parsed here, with one exception: where token ids are wanted, the
body of a request gets the fields that ask for them.
"""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncIterator, Awaitable, Iterable
from typing import Any, Final

import aiohttp
import orjson
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from coa.addresses import is_private
from coa.distill.gateway.call_log import Call, CallLog, Kept, Memory
from coa.distill.gateway.config import PORT, PROXY_HOST, RecordConfig
from coa.distill.gateway.privacy import credentials, harmless
from coa.distill.gateway.routes import AGENT_HEADER, RUN_HEADER, Route, Upstream, route_of
from coa.distill.gateway.sampled_tokens import with_tokens
from coa.http import lenient_json
from coa.models.dialects import Dialect, dialect_of

_HOP_BY_HOP: Final = frozenset({
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade",
})  # fmt: skip
_NOT_FORWARDED: Final = _HOP_BY_HOP | {"host", "expect", "accept-encoding", "content-length", RUN_HEADER, AGENT_HEADER}
_OURS: Final = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
"""Headers that aiohttp would add where the client sends none."""
_READ_AT_ONCE: Final = 1 << 20
_CONNECT_S: Final = 30.0
_ASKING: Final = aiohttp.ClientTimeout(10)
_IDLE_S: Final = 4.0
"""How long a connection to the server is kept for the next call: less than the 5 seconds of uvicorn, so that it is not
closed by the server in the moment it is used."""
_BACKLOG: Final = 4096
_LONGEST_HEADER: Final = 1 << 17
_READABLE: Final = ("gzip", "deflate", "identity")
"""Compressions that the log can undo. A client that also offers others does not get those."""
MB: Final = 1 << 20


class Proxy:
    """Runs in one event loop, between `start` and `close`."""

    def __init__(self, config: RecordConfig, calls: CallLog) -> None:
        self._calls, self._tokens = calls, config.tokens
        self._upstream = Upstream(config.upstream)
        self._anthropic = Upstream(config.upstream_anthropic) if config.upstream_anthropic else self._upstream
        self._memory = Memory(int(config.max_memory_mb * MB))
        self._most = int(config.max_body_mb * MB)
        self._wanted_port = PORT if config.port is None else config.port
        self._session: aiohttp.ClientSession | None = None
        self._runner: web.ServerRunner | None = None
        self._closing = False
        self._found: tuple[Dialect | None] | None = None
        """What the server is, once it has said so."""
        self.open: dict[str | None, int] = {}
        """Number of calls on their way, by run."""
        self.ended: set[str] = set()
        """Runs that accept no more calls."""

    async def start(self) -> int:
        """The port that it listens on."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(None, sock_connect=_CONNECT_S),
            auto_decompress=False,
            skip_auto_headers=_OURS,
            read_bufsize=1 << 18,
            max_line_size=_LONGEST_HEADER,
            max_field_size=_LONGEST_HEADER,
        )
        server = web.Server(
            self._handle, handler_cancellation=True, auto_decompress=False, access_log=None,
            max_line_size=_LONGEST_HEADER, max_field_size=_LONGEST_HEADER,
        )  # fmt: skip
        self._runner = web.ServerRunner(server, shutdown_timeout=0.5)
        try:
            await self._runner.setup()
            site = web.TCPSite(self._runner, PROXY_HOST, self._wanted_port, backlog=_BACKLOG)
            await site.start()
        except BaseException:
            await self.close()
            raise
        port: int = self._runner.addresses[0][1]
        return port

    async def close(self) -> None:
        self._closing = True
        if self._runner is not None:
            await self._runner.cleanup()
        if self._session is not None:
            await self._session.close()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        route = route_of(request.raw_path if request.raw_path.startswith("/") else request.rel_url.raw_path_qs)
        origin = route.origin(request.headers)
        if "Origin" in request.headers or not _names_this_machine(request.headers.get("Host", "")):
            # A browser sends requests of any page from this machine, and a page's owner can point a name at it.
            return _refusal(403, "the gateway answers no web page, and only requests to 127.0.0.1 or localhost")
        if origin.run in self.ended:
            return _refusal(409, f"the run {origin.run!r} has ended and accepts no more calls")
        if "upgrade" in request.headers.get("Connection", "").lower():
            return _refusal(501, "the gateway records HTTP calls; WebSocket connections are not forwarded")
        upstream = self._anthropic if route.path.startswith("/v1/messages") else self._upstream
        call = Call(
            self._calls.next_id(), route.protocol, route.path, origin, harmless(request.headers),
            credentials(request.headers.items(), route.query, upstream.secrets),
            Kept(self._memory, self._most), Kept(self._memory, self._most),
            request.headers.get("Content-Encoding", ""), request.headers.get("Content-Type", ""),
        )  # fmt: skip
        self.open[origin.run] = self.open.get(origin.run, 0) + 1
        try:
            return await self._forward(request, route, upstream, call)
        except asyncio.CancelledError:
            call.error = call.error or ("the gateway was stopped" if self._closing else _CLIENT_GONE)
            raise
        finally:
            self._calls.response(call)
            left = self.open[origin.run] - 1
            if left:
                self.open[origin.run] = left
            else:
                del self.open[origin.run]

    async def _forward(
        self, request: web.BaseRequest, route: Route, upstream: Upstream, call: Call
    ) -> web.StreamResponse:
        assert self._session is not None
        headers = _forwarded(request.headers.items(), _NOT_FORWARDED, request.headers.get("Connection", ""))
        if offered := request.headers.get("Accept-Encoding"):
            headers["Accept-Encoding"] = _readable(offered)
        if upstream.authorization:
            headers["Authorization"] = upstream.authorization
        try:
            data = await self._body(request, call, headers)
        except (aiohttp.ClientError, OSError, web.HTTPException) as error:
            call.error = _CLIENT_GONE
            raise asyncio.CancelledError from error
        response: web.StreamResponse | None = None
        try:
            async with self._session.request(
                request.method, URL(upstream.target(route), encoded=True), headers=headers, data=data,
                allow_redirects=False,
            ) as answer:  # fmt: skip
                if not call.written:
                    self._calls.request(call)
                call.status = answer.status
                call.got_type = answer.headers.get("Content-Type", "")
                call.got_encoding = answer.headers.get("Content-Encoding", "")
                response = _Forwarded(
                    status=answer.status, reason=answer.reason,
                    headers=_forwarded(answer.headers.items(), _HOP_BY_HOP, answer.headers.get("Connection", "")),
                )  # fmt: skip
                await _to_client(response.prepare(request))
                async for piece in answer.content.iter_any():
                    call.got.add(piece)
                    await _to_client(response.write(piece))
                call.whole = True
                await _to_client(response.write_eof())
                return response
        except _ClientGone:
            call.error = _CLIENT_GONE
        except TimeoutError:
            call.error = f"{upstream.name} does not answer: no connection within {_CONNECT_S:g} seconds"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            call.error = f"{upstream.name} {_what_failed(error, response is not None)}"
        if response is None:
            return _refusal(502, f"coa record: {call.error}")
        # The client must see that the response is not whole, so its connection ends without the end of the body.
        if request.transport is not None:
            request.transport.close()
        return response

    async def _body(self, request: web.BaseRequest, call: Call, headers: CIMultiDict[str]) -> Any:
        """What to send as the body: read at once if it is small or has to be changed, else piece by piece."""
        if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not request.body_exists:
            self._calls.request(call)
            return None
        length = request.content_length
        plain = length is not None and length <= self._most and not call.sent_encoding
        dialect = await self._dialect(call.protocol, headers) if self._tokens and plain else None
        if length is None or (length > _READ_AT_ONCE and dialect is None):
            if length is not None:
                headers["Content-Length"] = str(length)
            return self._passing(request, call)
        body = await request.content.read()
        call.sent.add(body)
        self._calls.request(call)
        if dialect is not None:
            body = with_tokens(dialect, call.protocol, body)
        return body if len(body) <= _READ_AT_ONCE else io.BytesIO(body)

    async def _dialect(self, protocol: str, headers: CIMultiDict[str]) -> Dialect | None:
        """Which server it is, asked once, with the key of the first call."""
        if protocol not in ("chat", "completions") or self._session is None:
            return None
        if self._found is None:
            target = URL(self._upstream.target(route_of("/v1/models")), encoded=True)
            keys = {name: value for name, value in headers.items() if name.lower() in ("authorization", "api-key")}
            try:
                async with self._session.get(target, headers=keys, timeout=_ASKING) as answer:
                    rows = lenient_json(await answer.read())["data"]
                    found = dialect_of(row for row in rows if isinstance(row, dict))
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError, TypeError):
                return None  # the call itself will show what is wrong with the server
            if found is None:
                self._calls.warn(f"{self._upstream.name} is not vLLM, SGLang or llama.cpp: no token ids are asked for")
            self._found = (found,)
        return self._found[0]

    async def _passing(self, request: web.BaseRequest, call: Call) -> AsyncIterator[bytes]:
        async for piece in request.content.iter_any():
            call.sent.add(piece)
            yield piece
        self._calls.request(call)


class _Forwarded(web.StreamResponse):
    """A response with the headers that the server sent: aiohttp would add those that it holds to be missing."""

    async def _prepare_headers(self) -> None:
        sent = {name for name in ("Content-Type", "Server") if name in self.headers}
        await super()._prepare_headers()
        for name in {"Content-Type", "Server"} - sent:
            self.headers.pop(name, None)


class _ClientGone(Exception):
    """The client closed its connection before it had the whole response."""


_CLIENT_GONE: Final = "the client went away"


async def _to_client(writing: Awaitable[object]) -> None:
    """Errors of writing to the client, which look like those of reading from the server."""
    try:
        await writing
    except OSError as error:
        raise _ClientGone from error


def _forwarded(headers: Iterable[tuple[str, str]], without: frozenset[str], connection: str) -> CIMultiDict[str]:
    found: CIMultiDict[str] = CIMultiDict()
    for name, value in headers:
        if name.lower() not in without and (value.isascii() or _encodable(value)):
            found.add(name, value)
    for name in connection.split(","):
        if name.strip().lower() not in ("", "close", "keep-alive"):
            found.popall(name.strip(), None)
    return found


def _names_this_machine(host: str) -> bool:
    return is_private(f"http://{host}") or host.partition(":")[0] == "host.docker.internal"


def _encodable(value: str) -> bool:
    """Not, if its bytes were no UTF-8: aiohttp reads such headers but cannot write them."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _readable(offered: str) -> str:
    """The compressions of a client's list that the log can undo."""
    kept = [part.strip() for part in offered.split(",") if part.partition(";")[0].strip().lower() in _READABLE]
    return ", ".join(kept) or "identity"


def _refusal(status: int, message: str) -> web.Response:
    """An error of the gateway itself, in a form that the clients of all protocols understand."""
    error = {"type": "api_error", "message": message, "code": None, "param": None}
    return web.Response(
        status=status, body=orjson.dumps({"type": "error", "error": error}), content_type="application/json"
    )


def _what_failed(error: Exception, begun: bool) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno
        # asyncio words the refusal of a connection itself, and host names that do not exist have negative numbers.
        reason = os.strerror(number) if number is not None and number > 0 else error.os_error.strerror
        return f"cannot be reached: {reason or error.os_error}"
    if begun or isinstance(error, aiohttp.ServerDisconnectedError | ConnectionResetError):
        return (
            "closed the connection in the middle of the response"
            if begun
            else "closed the connection without a response"
        )
    if isinstance(error, aiohttp.ClientResponseError):
        return "sent something that is not HTTP"
    return f"did not answer: {type(error).__name__}"  # more could name the address, and that may hold a key
