"""The connections of a sandbox server: how many there may be, and how long one may do nothing.

A connection is busy while a request of its is being handled and answered. All others wait for a client that may never
send anything. They are closed after a time limit, and at once, the oldest first, when there are too many connections.
So a client that opens connections and sends half a request on each shuts out only itself: a real request arrives whole
and is busy.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from coa.sandbox.caps import Caps

_SPARE_DESCRIPTORS = 256
"""For runs, their pipes, and everything else that the server has open."""


class Connections:
    def __init__(self, server: web.Server, caps: Caps) -> None:
        self._server = server
        self.header_s, self.idle_s = caps.header_s, caps.idle_s
        descriptors = _descriptors(caps.connections + _SPARE_DESCRIPTORS)
        self.most = min(caps.connections, max(descriptors - _SPARE_DESCRIPTORS, descriptors // 2))
        self._idle: dict[_Connection, asyncio.TimerHandle] = {}
        """In the order in which they became idle."""
        self._open: set[_Connection] = set()

    def accept(self) -> web.RequestHandler:
        """The protocol of a new connection, as `create_server` asks for it."""
        return _Connection(self, self._server)

    def opened(self, connection: _Connection) -> None:
        self._open.add(connection)
        self._wait(connection, self.header_s)
        if len(self._open) > self.most:
            self._close(next(iter(self._idle), connection))  # if all others are busy, the new one

    def ended(self, connection: _Connection) -> None:
        self._open.discard(connection)
        self._stop_waiting(connection)

    @contextmanager
    def busy(self, connection: _Connection) -> Iterator[None]:
        self._stop_waiting(connection)
        try:
            yield
        finally:
            if connection in self._open:
                self._wait(connection, self.idle_s)

    def _wait(self, connection: _Connection, seconds: float) -> None:
        if connection.transport is not None:
            self._idle[connection] = asyncio.get_running_loop().call_later(seconds, self._close, connection)

    def _close(self, connection: _Connection) -> None:
        transport = connection.transport
        self.ended(connection)
        if transport is not None:
            transport.abort()  # it does not matter what the client has not read yet

    def _stop_waiting(self, connection: _Connection) -> None:
        if (timer := self._idle.pop(connection, None)) is not None:
            timer.cancel()


class _Connection(web.RequestHandler):
    """aiohttp's handler of one connection, which also says when it opens and when it ends."""

    def __init__(self, connections: Connections, server: web.Server) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), keepalive_timeout=connections.idle_s)
        self.connections = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.connections.opened(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.connections.ended(self)
        super().connection_lost(exc)


@contextmanager
def busy(request: web.BaseRequest) -> Iterator[None]:
    """While a request is handled, its connection is not idle."""
    connection = request.protocol
    if isinstance(connection, _Connection):
        with connection.connections.busy(connection):
            yield
    else:
        yield


def _descriptors(wanted: int) -> int:
    """How many files this process may have open, after asking for as many as `wanted`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else soft
