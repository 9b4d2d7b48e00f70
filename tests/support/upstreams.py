"""A model server on loopback that sends what a test wants, byte by byte, and keeps what it was sent."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from coa.distill.gateway.config import RecordConfig
from coa.distill.gateway.stage import Gateway, record

Reply = Callable[[web.Request, bytes], Awaitable[web.StreamResponse]]


@dataclass
class Received:
    method: str
    path: str
    """With its query."""
    headers: dict[str, str]
    body: bytes


@dataclass
class ByteUpstream:
    """`reply` answers every request; `left` counts requests whose client went away."""

    reply: Reply
    received: list[Received] = field(default_factory=list)
    left: int = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.received.append(Received(request.method, request.raw_path, headers, body))
        try:
            return await self.reply(request, body)
        except (asyncio.CancelledError, ConnectionResetError):
            self.left += 1
            raise

    async def serve(self, started: Callable[[int], None], stop: asyncio.Event) -> None:
        app = web.Application(client_max_size=1 << 30, handler_args={"auto_decompress": False})
        app.router.add_route("*", "/{path:.*}", self.handle)
        runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True, auto_decompress=False
        )
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=2048).start()
        started(runner.addresses[0][1])
        await stop.wait()
        await runner.cleanup()


@contextmanager
def serving(upstream: ByteUpstream) -> Iterator[str]:
    """Its address, without `/v1`."""
    loop, ready, stop, ports = asyncio.new_event_loop(), threading.Event(), asyncio.Event(), list[int]()

    def started(port: int) -> None:
        ports.append(port)
        ready.set()

    thread = threading.Thread(target=lambda: loop.run_until_complete(upstream.serve(started, stop)), daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield f"http://127.0.0.1:{ports[0]}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()


@contextmanager
def recording(reply: Reply, folder: Path, **settings: Any) -> Iterator[tuple[Gateway, ByteUpstream]]:
    """A gateway in front of such a server. Its files are complete when the block has ended."""
    upstream = ByteUpstream(reply)
    with serving(upstream) as url, record(RecordConfig(upstream=url, port=0, **settings), folder) as gateway:
        yield gateway, upstream


def always(body: bytes | str, status: int = 200, **headers: str) -> Reply:
    data = body.encode() if isinstance(body, str) else body

    async def reply(request: web.Request, _: bytes) -> web.StreamResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(status=status, body=data, headers={"Content-Type": "application/json", **named})

    return reply


def streams(*pieces: bytes, pause_s: float = 0.0, breaks: bool = False, **headers: str) -> Reply:
    """Server-sent events; `breaks` drops the connection behind the last piece."""

    async def reply(request: web.Request, _: bytes) -> web.StreamResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8", **named})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
            await asyncio.sleep(pause_s)
        if breaks and request.transport is not None:
            request.transport.close()
        return response

    return reply


def sse(*values: Any, done: bool = True) -> list[bytes]:
    events = [b"data: " + json.dumps(value).encode() + b"\n\n" for value in values]
    return [*events, b"data: [DONE]\n\n"] if done else events


def lines(folder: Path) -> list[dict[str, Any]]:
    """All lines of all recordings of a folder, which must be whole."""
    return [
        json.loads(line) for file in sorted(folder.glob("*.calls.jsonl")) for line in file.read_bytes().splitlines()
    ]


def calls(folder: Path) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Requests with their responses, in the order in which they arrived."""
    found = lines(folder)
    responses = {line["id"]: line for line in found if line["event"] == "response"}
    return [(line, responses[line["id"]]) for line in found if line["event"] == "request"]
