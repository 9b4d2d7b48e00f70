"""What every request has to pass before a protocol sees it: host, origin, key, size and speed of the body.

A server on loopback is within reach of every web page that its user opens: a page may send requests there, and with a
host name of its own that resolves to 127.0.0.1 it could read the answers too. So the `Host` of a request must be one
that the server knows, and requests that a page of another origin makes are refused unless that origin is listed.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import time
from collections.abc import Iterable, MutableMapping
from typing import Any, Final

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coa.serve.api_error import ApiError
from coa.serve.config import ServeConfig
from coa.serve.keys import Keys
from coa.serve.metrics import Metrics
from coa.web.listening import host_name

log = logging.getLogger(__name__)
OPEN_PATHS: Final = frozenset({"/", "/health", "/ready", "/openapi.json", "/favicon.ico", "/view", "/view/"})
"""Paths that need no key: they show nothing of what agents do."""
OPEN_PREFIXES: Final = ("/static/", "/runs/", "/c/", "/view/static/")
"""The same for all paths below; the pages of a run and of a conversation get their content with the key."""
_ALLOWED_HEADERS: Final = (
    b"authorization, content-type, last-event-id, mcp-protocol-version, mcp-session-id, mcp-method, mcp-name"
)


class Guard:
    """ASGI middleware around the whole application. It also turns every error into the standard shape."""

    def __init__(self, app: ASGIApp, config: ServeConfig, keys: Keys, metrics: Metrics) -> None:
        self._app, self._config, self._keys, self._metrics = app, config, keys, metrics
        self._hosts = {"localhost", config.host.lower(), *(host.lower() for host in config.hosts)}
        self._origins = {origin.rstrip("/").lower() for origin in config.origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sending = _Sending(send, self._config.framed_by)
        try:
            headers = _headers(scope["headers"])
            sending.origin = self._checked_origin(scope, headers)
            if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
                await sending.preflight()
                return
            scope.setdefault("state", {})["caller"] = self._caller(scope["path"], headers)
            scope["app"] = self._app  # the router then raises for a wrong path or method instead of answering
            await self._app(scope, _Body(receive, headers, self._config).receive, sending)
        except ApiError as error:
            await sending.refuse(error)
        except HTTPException as error:
            await sending.refuse(_missing(scope, error))
        except ClientDisconnect:
            log.debug("the client of %s %s went away before it had sent its body", scope["method"], scope["path"])
        except Exception:
            log.exception("the request %s %s failed", scope["method"], scope["path"])
            await sending.refuse(ApiError(500, "an error of the server; its log says more", code="internal_error"))
        finally:
            self._metrics.request(scope["method"], _route(scope), sending.status)

    def _checked_origin(self, scope: Scope, headers: MutableMapping[str, str]) -> str | None:
        """The origin of a page that may read the answer; None for any other client."""
        host = headers.get("host", "")
        if not self._known(host):
            name = host_name(host)
            if not name:
                raise ApiError(400, "The request has no Host header.", code="unknown_host")
            raise ApiError(
                421,
                f"the host {name!r} is not served here; add it with --set hosts='[\"{name}\"]'",
                code="unknown_host",
            )
        origin = headers.get("origin")
        if origin is None:
            return None
        if origin.lower() in self._origins:
            return origin
        if origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}"):
            return None  # our own page
        raise ApiError(
            403, f"pages of {origin} may not call this server; add the origin with --set origins", code="unknown_origin"
        )

    def _known(self, host: str) -> bool:
        name = host_name(host)
        if name in self._hosts:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        # No foreign page can have an address for its name, so any address at which we are reached will do.
        return address.is_loopback or self._config.host not in ("127.0.0.1", "::1", "localhost")

    def _caller(self, path: str, headers: MutableMapping[str, str]) -> object:
        found = self._keys.check(headers.get("authorization"))
        if found is None and path not in OPEN_PATHS and not path.startswith(OPEN_PREFIXES):
            what = "no key" if "authorization" not in headers else "a key that is not valid here"
            raise ApiError(
                401, f"the request has {what}; send the header `Authorization: Bearer KEY`", code="invalid_api_key"
            )
        return found


class _Body:
    """The body of one request: no larger and no slower than allowed."""

    def __init__(self, receive: Receive, headers: MutableMapping[str, str], config: ServeConfig) -> None:
        self._receive, self._most = receive, config.max_body_bytes
        self._timeout_s, self._began = config.body_timeout_s, time.monotonic()
        self._read, self._complete = 0, False
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._most:
            raise self._too_large()

    async def receive(self) -> Message:
        if self._complete:
            return await self._receive()
        left = self._began + self._timeout_s - time.monotonic()
        try:
            async with asyncio.timeout(max(left, 0.001)):
                message = await self._receive()
        except TimeoutError:
            raise ApiError(
                408, f"the body did not arrive within {self._timeout_s:g} seconds", code="request_timeout"
            ) from None
        if message["type"] == "http.request":
            self._read += len(message.get("body", b""))
            if self._read > self._most:
                raise self._too_large()
            self._complete = not message.get("more_body", False)
        return message

    def _too_large(self) -> ApiError:
        return ApiError(413, f"the body is larger than {self._most:,} bytes", code="request_too_large")


class _Sending:
    """`send`, with the headers that every answer gets."""

    def __init__(self, send: Send, framed_by: Iterable[str]) -> None:
        self._send = send
        self._ancestors = b"frame-ancestors " + (" ".join(framed_by) or "'none'").encode()
        self.status = 0
        """0 before an answer has begun."""
        self.origin: str | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = ((name, value.replace(b"frame-ancestors 'none'", self._ancestors)) for name, value in _raw(message))
            headers = [*own, (b"x-content-type-options", b"nosniff"), *self._cors()]
            message = {**message, "headers": headers}
        await self._send(message)

    async def refuse(self, error: ApiError) -> None:
        if self.status:
            return  # the answer has begun; the protocol reports what happens later
        body = orjson.dumps(error.body())
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if error.retry_after_s is not None:
            headers.append((b"retry-after", str(max(round(error.retry_after_s), 1)).encode()))
        if error.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if error.status in (408, 413):
            headers.append((b"connection", b"close"))
        await self({"type": "http.response.start", "status": error.status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    async def preflight(self) -> None:
        await self({"type": "http.response.start", "status": 204, "headers": []})
        await self._send({"type": "http.response.body", "body": b""})

    def _cors(self) -> Iterable[tuple[bytes, bytes]]:
        if self.origin is None:
            return ()
        return (
            (b"access-control-allow-origin", self.origin.encode()),
            (b"access-control-allow-methods", b"GET, POST, DELETE"),
            (b"access-control-allow-headers", _ALLOWED_HEADERS),
            (b"access-control-expose-headers", b"mcp-session-id"),
            (b"vary", b"origin"),
        )


def _missing(scope: Scope, error: HTTPException) -> ApiError:
    if error.status_code == 405:
        return ApiError(405, f"{scope['method']} is not possible for {scope['path']}", code="method_not_allowed")
    return ApiError(error.status_code, f"there is nothing at {scope['path']}", code="not_found")


def _raw(message: Message) -> Iterable[tuple[bytes, bytes]]:
    found: Iterable[tuple[bytes, bytes]] = message.get("headers", ())
    return found


def _headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in raw}


def _route(scope: MutableMapping[str, Any]) -> str | None:
    """The path as it was declared, so that ids do not become labels of metrics."""
    return getattr(scope.get("route"), "path", None)
