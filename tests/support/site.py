"""A web site on loopback for tests, most of it hostile, and a socket that records where connections would go."""

from __future__ import annotations

import asyncio
import gzip
import socket
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from aiohttp import web

from coa.tools.web.fetch import AddrInfo, Fetcher, FetchRules
from coa.tools.web.guard import AllowList

NAME = "site.test"
"""Resolves to the test site."""
ARTICLE = (
    "<html><head><title>The Lighthouse of Vell</title><meta name='date' content='2021-03-04'></head><body>"
    "<nav><a href='/menu'>Menu entry</a></nav><article><h1>The Lighthouse of Vell</h1>"
    "<p>The lighthouse of Vell was built in 1871 by the engineer Orla Finch on the northern cape of the island.</p>"
    "<p>It is forty-one metres high, and its light can be seen from a distance of <a href='/range'>twenty-two miles</a>"
    " in clear weather, which made it the strongest of its time.</p>"
    "<p>After the storm of 1902 the upper gallery was rebuilt in iron, and the keeper moved to the village below.</p>"
    "</article><footer><a href='/imprint'>Imprint</a></footer></body></html>"
)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def answer(
    body: bytes | str, content_type: str = "text/html", status: int = 200, headers: dict[str, str] | None = None
) -> Handler:
    data = body.encode() if isinstance(body, str) else body

    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(body=data, status=status, headers={"Content-Type": content_type, **(headers or {})})

    return handler


def moved(where: str, status: int = 302) -> Handler:
    return answer("moved", status=status, headers={"Location": where})


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/html"})
    await response.prepare(request)
    while True:
        await response.write(b"<p>more and more</p>" * 4000)


async def trickle(request: web.Request) -> web.StreamResponse:
    """Never silent for long, and never done."""
    response = web.StreamResponse(headers={"Content-Type": "text/html"})
    await response.prepare(request)
    while True:
        await response.write(b".")
        await asyncio.sleep(0.05)


async def silent(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(60)
    return web.Response()


@cache
def bombs() -> dict[str, Handler]:
    zeros = b"\x00" * (24 << 20)
    packed = zlib.compressobj(9, wbits=-15)
    return {
        "/gzip-bomb": answer(gzip.compress(zeros), headers={"Content-Encoding": "gzip"}),
        "/deflate-bomb": answer(zlib.compress(zeros, 9), headers={"Content-Encoding": "deflate"}),
        "/raw-deflate-bomb": answer(packed.compress(zeros) + packed.flush(), headers={"Content-Encoding": "deflate"}),
        "/brotli-bomb": answer(b"\xcf\xff\xff\x7f\xf8", headers={"Content-Encoding": "br"}),
        "/twice-packed": answer(gzip.compress(gzip.compress(zeros)), headers={"Content-Encoding": "gzip, gzip"}),
    }


class Recorder:
    """Opens sockets to loopback only, so that nothing leaves even if every gate fails; remembers what was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, info: AddrInfo) -> socket.socket:
        self.asked.append(str(info[4][0]))
        if not str(info[4][0]).startswith("127."):
            raise OSError("a test does not connect there")
        opened = socket.socket(info[0], info[1], info[2])
        opened.setblocking(False)
        return opened


class Names:
    """DNS under the test's control. A name with several answers gives them one after another: rebinding."""

    def __init__(self, **answers: Sequence[Sequence[str]]) -> None:
        self.answers = {name.replace("_", "."): list(given) for name, given in answers.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        if host == NAME:
            return ["127.0.0.1"]
        given = self.answers.get(host)
        if not given:
            raise OSError(f"no address for {host}")
        return given.pop(0) if len(given) > 1 else given[0]


class Site:
    def __init__(self, pages: Mapping[str, Handler]) -> None:
        self.pages = dict(pages)
        self.requests: list[web.BaseRequest] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://{NAME}:{self.port}"

    def fetcher(self, names: Names | None = None, recorder: Recorder | None = None, **rules: Any) -> Fetcher:
        allowed = AllowList.parse([f"{NAME}:{self.port}"])
        return Fetcher(
            FetchRules(allowed=allowed, **rules), resolve=names or Names(), open_socket=recorder or Recorder()
        )

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests.append(request)
        handler = self.pages.get(request.path)
        if handler is None:
            return web.Response(status=404, text="nothing here")
        return await handler(request)  # type: ignore[arg-type]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Site]:
        runner = web.ServerRunner(web.Server(self._handle), shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = runner.addresses[0][1]
        try:
            yield self
        finally:
            await runner.cleanup()
