"""An OpenTelemetry collector on loopback, in a thread, which keeps what it is sent and answers as a test wants."""

from __future__ import annotations

import asyncio
import gzip
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass(frozen=True)
class ReceivedSpan:
    trace: str
    id: str
    parent: str
    name: str
    attributes: dict[str, Any]


@dataclass
class Collector:
    answers: list[tuple[int, bytes]]
    """Status and body; the last one again and again."""
    port: int = 0
    hold: threading.Event = field(default_factory=threading.Event)
    """While it is not set, no request is answered."""
    asked: threading.Event = field(default_factory=threading.Event)
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    spans: list[ReceivedSpan] = field(default_factory=list)
    """Of requests that were answered with 200."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def roots(self) -> list[ReceivedSpan]:
        return [span for span in self.spans if not span.parent]

    async def handle(self, request: web.Request) -> web.Response:
        self.requests.append((request.path, dict(request.headers)))
        body = await request.read()  # aiohttp has decompressed it already
        self.asked.set()
        await asyncio.to_thread(self.hold.wait, 60)
        status, answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if status == 200:
            self.spans += spans_in(body)
        return web.Response(status=status, body=answer, content_type="application/x-protobuf")


@contextmanager
def collecting(*answers: tuple[int, bytes], held: bool = False) -> Iterator[Collector]:
    collector = Collector(list(answers) or [(200, b"")])
    if not held:
        collector.hold.set()
    loop, ready = asyncio.new_event_loop(), threading.Event()

    async def serve() -> web.AppRunner:
        application = web.Application(client_max_size=1 << 30)
        application.router.add_post("/{path:.*}", collector.handle)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        collector.port = runner.addresses[0][1]
        return runner

    def work() -> None:
        asyncio.set_event_loop(loop)
        runner = loop.run_until_complete(serve())
        ready.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait()
    try:
        yield collector
    finally:
        collector.hold.set()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def spans_in(body: bytes) -> list[ReceivedSpan]:
    """The spans of a request, by the field numbers of OpenTelemetry's protocol."""
    data = gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body
    found = []
    for resource in _all(data, 1):
        for scope in _all(resource, 2):
            for span in _all(scope, 2):
                trace, identity, parent = (next(iter(_all(span, number)), b"").hex() for number in (1, 2, 4))
                found.append(
                    ReceivedSpan(trace, identity, parent, _all(span, 5)[0].decode(), _attributes(_all(span, 9)))
                )
    return found


def _attributes(rows: Sequence[bytes]) -> dict[str, Any]:
    return {_all(row, 1)[0].decode(): _value(_all(row, 2)[0]) for row in rows}


def _value(data: bytes) -> Any:
    [(number, value)] = _fields(data)
    match number:
        case 1:
            return value.decode()
        case 2:
            return bool(value)
        case 3:
            return value - (1 << 64) if value >= 1 << 63 else value
        case 4:
            return struct.unpack("<d", value)[0]
        case 5:
            return [_value(item) for item in _all(value, 1)]
    raise ValueError(f"a value of type {number}")


def _all(data: bytes, number: int) -> list[Any]:
    return [value for found, value in _fields(data) if found == number]


def _fields(data: bytes) -> list[tuple[int, Any]]:
    found: list[tuple[int, Any]] = []
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            value |= (data[at] & 127) << shift
            at, shift = at + 1, shift + 7
            if data[at - 1] < 128:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            found.append((key >> 3, varint()))
            continue
        length = 8 if key & 7 == 1 else varint()
        found.append((key >> 3, data[at : at + length]))
        at += length
    return found
