"""Pages a second: a site on loopback, read by `crawl_page`, compared with the same without guard and workers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import aiohttp
from aiohttp import web
from trafilatura import extract

from coa.tools import ToolContext
from coa.tools.crawl_page import CrawlPage
from coa.tools.web.fetch import Fetcher, FetchRules
from coa.tools.web.guard import AllowList
from coa.trajectory import Task

PAGES = 200
AT_ONCE = 16
CONTEXT = ToolContext(Task(id="bench", question="?"))


def page(number: int) -> str:
    """About 40 kB of HTML with 8 kB of text, menus around it: an encyclopedia article of middling length."""
    menu = "".join(
        f'<li><a href="/{n}" class="menu-entry item-{n}">Section {n} of the site</a></li>' for n in range(300)
    )
    text = "".join(
        f"<p>Paragraph {n} of article {number} tells of the year {1700 + n}, when the harbour was dredged and the "
        f'<a href="/{number + n}">light</a> was moved to the northern cape, which took the council {n} years.</p>'
        for n in range(50)
    )
    head = f"<head><title>Article {number}</title></head>"
    return f"<html>{head}<body><ul>{menu}</ul><article>{text}</article></body></html>"


async def serve() -> tuple[web.ServerRunner, int]:
    pages = {f"/{number}": page(number).encode() for number in range(PAGES)}

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        body = pages.get(request.path)
        return web.Response(body=body, content_type="text/html") if body else web.Response(status=404)

    runner = web.ServerRunner(web.Server(handle), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return runner, int(runner.addresses[0][1])


async def timed(work: Callable[[int], Awaitable[object]]) -> float:
    """Pages a second, so many at a time."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with turns:
            await work(number)

    start = time.perf_counter()
    await asyncio.gather(*(one(number) for number in range(PAGES)))
    return PAGES / (time.perf_counter() - start)


async def main() -> None:
    runner, port = await serve()
    base = f"http://127.0.0.1:{port}"
    tool = CrawlPage(Fetcher(FetchRules(allowed=AllowList.parse([f"127.0.0.1:{port}"]))), at_once=AT_ONCE)

    async def ours(number: int) -> None:
        seen = await tool.call({"items": [f"{base}/{number}"]}, CONTEXT)
        assert seen.ok and f"article {number}" in seen.text, seen.text[:200]

    async with aiohttp.ClientSession() as session:

        async def bare(number: int) -> None:
            async with session.get(f"{base}/{number}") as response:
                assert extract(await response.text())

        async def fetched(number: int) -> None:
            await guarded.get(f"{base}/{number}")

        guarded = Fetcher(FetchRules(allowed=AllowList.parse([f"127.0.0.1:{port}"])))
        await asyncio.gather(*(ours(number) for number in range(8)))  # the workers start
        baseline = await timed(bare)
        print(f"{PAGES} pages of {len(page(0)) // 1000} kB, {AT_ONCE} at a time")
        print(f"aiohttp and trafilatura, no guard, in one process   {baseline:7.1f} pages/s   1.00")
        rate = await timed(ours)
        print(f"crawl_page                                          {rate:7.1f} pages/s   {rate / baseline:.2f}")
        rate = await timed(fetched)
        print(f"guarded fetching alone                              {rate:7.1f} pages/s   {rate / baseline:.2f}")
        await guarded.close()
    await tool.close()
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
