"""A world in use: its pages on a real HTTP server on loopback, and the tool settings that lead there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from aiohttp import web

from coa.worlds.atlas.entities import RESULTS
from coa.worlds.atlas.questions import PROFILE
from coa.worlds.folder import INDEX, PAGES, START, locate, read


@dataclass(frozen=True, slots=True)
class OpenWorld:
    """A served world."""

    folder: Path
    url: str
    """For a browser. Addresses inside the world are short and have no port."""
    tools: tuple[str, ...]
    """As `--tool` takes them."""
    profile: str = PROFILE


@asynccontextmanager
async def open_world(name_or_folder: str | Path, *, port: int = 0) -> AsyncIterator[OpenWorld]:
    """Serve a world, by name or by folder, for as long as the context lasts."""
    folder = await asyncio.to_thread(locate, name_or_folder)
    built = read(folder)
    pages = await asyncio.to_thread(_pages, folder / PAGES)

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        body = pages.get(unquote(request.path).strip("/"))
        if body is None:
            return web.Response(status=404, text="there is no such page\n")
        return web.Response(body=body, content_type="text/html", charset="utf-8")

    runner = web.ServerRunner(web.Server(handle, access_log=None), shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        at = runner.addresses[0][1]
        search = f"web_search={folder.resolve() / INDEX},k={RESULTS},show=brief"
        crawl = f"crawl_page=site={built.world}@127.0.0.1:{at},edition={built.hash[:12]}"
        yield OpenWorld(folder, f"http://127.0.0.1:{at}/", (search, crawl))
    finally:
        await runner.cleanup()


@asynccontextmanager
async def world_tools(world: str | Path | None, given: Sequence[str] = ()) -> AsyncIterator[list[str]]:
    """The given tool settings, and those of the world for tools that are not among them."""
    if world is None:
        yield list(given)
        return
    own = {item.partition("=")[0] for item in given}
    async with open_world(world) as opened:
        yield [*given, *(item for item in opened.tools if item.partition("=")[0] not in own)]


def _pages(folder: Path) -> dict[str, bytes]:
    found = {}
    for file in folder.rglob("*.html"):
        path = file.relative_to(folder).as_posix()
        found["" if path == START else path.removesuffix(".html")] = file.read_bytes()
    return found
