"""Fetching under the guard: a name is resolved once, the connection goes to the checked address, and all has limits.

There are four gates, each of which would suffice: the address as written, what its name resolves to, every socket
before it connects, and the peer before anything is sent. There are no cookies, no credentials and no proxies from the
environment. Redirects are followed here, not by aiohttp, and each is checked.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from coa.tools.web import guard
from coa.tools.web.decoding import ACCEPTED, BadBody, Unpacker
from coa.tools.web.guard import Address, AllowList, Refused, check_url

AGENT: Final = "coa"
"""Our name in robots.txt."""
_HEADERS: Final[Mapping[str, str]] = {
    "User-Agent": f"Mozilla/5.0 (compatible; {AGENT}/0.1; chain-of-agents)",
    "Accept": "text/html,application/xhtml+xml,application/pdf;q=0.9,text/plain;q=0.9,*/*;q=0.5",
    "Accept-Language": "en,*;q=0.5",
    "Accept-Encoding": ACCEPTED,
}
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Host and port -> addresses as text."""
AddrInfo = tuple[int | socket.AddressFamily, int | socket.SocketKind, int, str, tuple[object, ...]]
OpenSocket = Callable[[AddrInfo], socket.socket]


@dataclass(frozen=True, slots=True)
class FetchRules:
    allowed: AllowList = field(default_factory=AllowList)
    max_bytes: int = 16 << 20
    """Of a body, on the wire and unpacked."""
    max_redirects: int = 5
    total_s: float = 30.0
    """For everything, including redirects."""
    connect_s: float = 10.0
    silence_s: float = 10.0
    """Without a single byte."""


@dataclass(frozen=True, slots=True)
class Fetched:
    url: str
    """The address after all redirects."""
    status: int
    content_type: str
    body: bytes
    wire_bytes: int
    redirects: tuple[str, ...] = ()


class FetchFailed(Exception):
    """There is no page; the message says why, for the model to read. `transient`: another attempt may help."""

    def __init__(self, message: str, *, transient: bool = False, status: int | None = None) -> None:
        super().__init__(message)
        self.transient = transient
        self.status = status


async def resolve_by_system(host: str, port: int) -> Sequence[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


class Fetcher:
    """Fetches pages. Opened by the first request, in the event loop that makes it; `close` at the end."""

    def __init__(
        self,
        rules: FetchRules | None = None,
        *,
        resolve: Resolve = resolve_by_system,
        open_socket: OpenSocket | None = None,
    ) -> None:
        self.rules = rules or FetchRules()
        self._resolver = _GuardedResolver(resolve, self.rules.allowed)
        self._open_socket = open_socket or _plain_socket
        self._session: aiohttp.ClientSession | None = None

    async def check(self, url: str) -> str:
        """Refuse as `get` would, without fetching: for callers that let another service fetch."""
        checked = check_url(url, self.rules.allowed)
        assert checked.host is not None and checked.port is not None
        if guard.as_address(checked.host) is None:
            try:
                async with asyncio.timeout(self.rules.connect_s):
                    await self._resolver.resolve(checked.host, checked.port)
            except TimeoutError as error:
                raise FetchFailed(f"the name {checked.host} was not resolved in time", transient=True) from error
            except OSError as error:
                raise FetchFailed(f"the host {checked.host} is not known") from error
        return str(checked)

    async def get(
        self, url: str, *, max_bytes: int | None = None, approve: Callable[[str], Awaitable[None]] | None = None
    ) -> Fetched:
        """A page with a good status, or `Refused`, or `FetchFailed`. `approve` is asked about every redirect."""
        rules = self.rules
        try:
            async with asyncio.timeout(rules.total_s):
                return await self._follow(url, max_bytes or rules.max_bytes, approve)
        except Refused:
            raise
        except aiohttp.ConnectionTimeoutError as error:
            raise FetchFailed(f"no connection within {rules.connect_s:g} seconds", transient=True) from error
        except aiohttp.SocketTimeoutError as error:
            raise FetchFailed(f"nothing came for {rules.silence_s:g} seconds", transient=True) from error
        except TimeoutError as error:
            raise FetchFailed(f"no complete answer within {rules.total_s:g} seconds") from error
        except BadBody as error:
            raise FetchFailed(str(error)) from error
        except aiohttp.ClientConnectorDNSError as error:
            raise FetchFailed(f"the host {URL(url).host} is not known") from error
        except aiohttp.ClientConnectorCertificateError as error:
            raise FetchFailed(f"the certificate of {error.host} is not valid") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise FetchFailed(f"the connection failed ({reason[:200]})", transient=True) from error

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _follow(self, url: str, max_bytes: int, approve: Callable[[str], Awaitable[None]] | None) -> Fetched:
        visited: list[str] = []
        while True:
            checked = check_url(url, self.rules.allowed)
            async with self._open().get(checked, allow_redirects=False) as response:
                if response.status not in _REDIRECTS:
                    return await self._read(response, max_bytes, tuple(visited))
                where = response.headers.get("Location", "")
                response.close()  # the body of a redirect is of no use, however long it is
            if not where:
                raise FetchFailed("it redirects without saying where to")
            if len(visited) == self.rules.max_redirects:
                raise FetchFailed(f"it redirects more than {self.rules.max_redirects} times")
            visited.append(str(checked))
            try:
                url = str(checked.join(URL(where.strip())))
            except ValueError as error:
                raise FetchFailed("it redirects to something that is not an address") from error
            try:
                check_url(url, self.rules.allowed)
                if approve is not None:
                    await approve(url)
            except Refused as error:
                raise Refused(f"it redirects to {url[:200]}: {error}") from error

    async def _read(self, response: aiohttp.ClientResponse, max_bytes: int, visited: tuple[str, ...]) -> Fetched:
        if response.status != 200:
            raise FetchFailed(
                f"the server answers {response.status} {' '.join((response.reason or '').split())[:80]}".rstrip(),
                transient=response.status in (408, 425, 429) or response.status >= 500,
                status=response.status,
            )
        if (length := response.content_length) is not None and length > max_bytes:
            raise BadBody(f"the page is larger than {max_bytes:,} bytes")
        unpacker = Unpacker(response.headers.get("Content-Encoding", ""), max_bytes=max_bytes)
        wire = 0
        async for piece in response.content.iter_any():
            wire += len(piece)
            unpacker.feed(piece)
        declared = response.headers.get("Content-Type", "")
        return Fetched(str(response.url), response.status, declared, unpacker.end(), wire, visited)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            rules = self.rules
            self._session = aiohttp.ClientSession(
                connector=_GuardedConnector(self._resolver, self._gated_socket),
                headers=_HEADERS,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
                timeout=aiohttp.ClientTimeout(None, sock_connect=rules.connect_s, sock_read=rules.silence_s),
            )
        return self._session

    def _gated_socket(self, info: AddrInfo) -> socket.socket:
        host, port = str(info[4][0]), int(str(info[4][1]))
        if not self._resolver.permits(ip_address(host), port):
            raise Refused(f"{host} is not a public address")
        return self._open_socket(info)


class _GuardedConnector(aiohttp.TCPConnector):
    """Checks the peer of a connection before anything is sent: the last gate, should the others fail."""

    def __init__(self, resolver: _GuardedResolver, open_socket: OpenSocket) -> None:
        super().__init__(limit=64, resolver=resolver, use_dns_cache=False, socket_factory=open_socket)
        self._guard = resolver

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Any], timeout: aiohttp.ClientTimeout
    ) -> aiohttp.connector.Connection:
        connection = await super().connect(req, traces, timeout)
        peer = connection.transport.get_extra_info("peername") if connection.transport is not None else None
        if not peer or not self._guard.permits(ip_address(str(peer[0])), int(peer[1])):
            connection.close()
            raise Refused("the connection led to an address that is not public")
        return connection


class _GuardedResolver(AbstractResolver):
    """Resolves a name once for each connection; the connection goes to the address that it returns."""

    def __init__(self, resolve: Resolve, allowed: AllowList) -> None:
        self._resolve = resolve
        self._allowed = allowed
        self._opened: set[tuple[Address, int]] = {
            (address, port)
            for host, port in allowed.entries
            if (address := guard.as_address(host)) is not None and guard.may_be_opened(address)
        }

    def permits(self, address: Address, port: int) -> bool:
        return guard.is_public(address) or (address, port) in self._opened

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        texts = list(dict.fromkeys(await self._resolve(host, port)))
        addresses = [ip_address(text) for text in texts]
        if not addresses:
            raise OSError(None, f"no address for {host}")
        guard.check_addresses(host, port, addresses, self._allowed)
        if (host.lower().rstrip("."), port) in self._allowed:
            self._opened.update((address, port) for address in addresses)
        families, flags = {4: socket.AF_INET, 6: socket.AF_INET6}, socket.AI_NUMERICHOST
        return [
            ResolveResult(hostname=host, host=str(one), port=port, family=families[one.version], proto=0, flags=flags)
            for one in addresses
        ]

    async def close(self) -> None:
        pass


def _plain_socket(info: AddrInfo) -> socket.socket:
    opened = socket.socket(info[0], info[1], info[2])
    opened.setblocking(False)
    return opened
