"""Manners towards hosts: few requests at once, a pause between them, and respect for robots.txt."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from protego import Protego
from yarl import URL

from coa.tools.web.fetch import AGENT, Fetcher, FetchFailed
from coa.tools.web.guard import Refused

_HOSTS: Final = 2_000
"""The number of hosts that are remembered."""
_ROBOTS_BYTES: Final = 512 << 10
_KEPT_S: Final = 3_600.0
_LONGEST_DELAY_S: Final = 5.0
"""A crawl-delay of minutes would outlast the call; we fetch one page, not the whole site."""


@dataclass
class _Host:
    turns: asyncio.Semaphore
    free_at: float = 0.0
    robots: Protego | None = None
    robots_until: float = 0.0
    forbidden: str = ""
    """Why nothing may be fetched, if robots.txt could not be read."""
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)


class Manners:
    def __init__(self, fetcher: Fetcher, *, robots: bool = True, at_once: int = 2, delay_s: float = 0.5) -> None:
        self._fetcher, self._robots, self._at_once, self._delay_s = fetcher, robots, at_once, delay_s
        self._hosts: OrderedDict[str, _Host] = OrderedDict()

    @asynccontextmanager
    async def turn(self, url: str) -> AsyncIterator[None]:
        """Wait for our turn at the host. Raises `Refused` if its robots.txt forbids the page."""
        parsed = URL(url)
        host = self._host(str(parsed.origin()))
        async with host.turns:
            delay = self._delay_s
            if self._robots:
                delay = max(delay, await self._ask_robots(host, parsed))
            # Hosts on the allow-list belong to the user: no pause between requests.
            if (parsed.host or "", parsed.port or 0) not in self._fetcher.rules.allowed:
                now = time.monotonic()
                start = max(now, host.free_at)
                host.free_at = start + delay
                await asyncio.sleep(start - now)
            yield

    async def permit(self, url: str) -> None:
        """Raises `Refused` if robots.txt forbids the page: for a redirect, which is followed without another turn."""
        if self._robots:
            parsed = URL(url)
            await self._ask_robots(self._host(str(parsed.origin())), parsed)

    async def _ask_robots(self, host: _Host, url: URL) -> float:
        async with host.asking:
            if host.robots_until < time.monotonic():
                await self._fetch_robots(host, url)
        if host.forbidden:
            raise Refused(host.forbidden)
        if host.robots is None:
            return 0.0
        if not host.robots.can_fetch(str(url), AGENT):
            raise Refused("the site's robots.txt asks programs not to read this page")
        return min(host.robots.crawl_delay(AGENT) or 0.0, _LONGEST_DELAY_S)

    async def _fetch_robots(self, host: _Host, url: URL) -> None:
        robots, forbidden, kept_s = None, "", _KEPT_S
        try:
            found = await self._fetcher.get(str(url.origin() / "robots.txt"), max_bytes=_ROBOTS_BYTES)
            robots = Protego.parse(found.body.decode("utf-8", "replace"))
        except FetchFailed as error:
            if error.status is None:
                kept_s = 60.0
            elif error.status >= 500:
                # RFC 9309: if robots.txt is unreachable because of a server error, everything is forbidden.
                forbidden, kept_s = f"its robots.txt cannot be read ({error})", 60.0
        except Refused:
            pass  # a robots.txt that redirects to the private network says nothing about the page
        # Set only now: a request that is interrupted above leaves the question open.
        host.robots, host.forbidden, host.robots_until = robots, forbidden, time.monotonic() + kept_s

    def _host(self, origin: str) -> _Host:
        found = self._hosts.get(origin)
        if found is None:
            found = self._hosts[origin] = _Host(asyncio.Semaphore(self._at_once))
            if len(self._hosts) > _HOSTS:
                self._hosts.popitem(last=False)
        self._hosts.move_to_end(origin)
        return found
