"""A JSON service behind a tool: bounded answers, retries, a breaker, an account of what was spent; keys stay unsaid.

aiohttp is imported with the first request.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit, urlunsplit

import orjson
from pydantic import JsonValue

from coa.tools.resilience import Breaker, Patience, Transient, Unserved, retried

if TYPE_CHECKING:
    import aiohttp

MAX_BYTES: Final = 8 << 20
_TRANSIENT: Final = frozenset({408, 425, 429, 500, 502, 503, 504, 529})


@dataclass
class Spent:
    """What a call cost. `dollars` is None where nobody told a price."""

    calls: int = 0
    bytes: int = 0
    seconds: float = 0.0
    credits: float | None = None
    dollars: float | None = None

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            self.calls + other.calls,
            self.bytes + other.bytes,
            self.seconds + other.seconds,
            _sum(self.credits, other.credits),
            _sum(self.dollars, other.dollars),
        )

    def meta(self) -> dict[str, JsonValue]:
        """For `Observation.meta`."""
        told: dict[str, JsonValue] = {
            "calls": self.calls, "bytes": self.bytes, "service_seconds": round(self.seconds, 4)
        }  # fmt: skip
        if self.credits is not None:
            told["credits"] = self.credits
        if self.dollars is not None:
            told["dollars"] = self.dollars
        return told


class Service:
    """One HTTP service. `secrets` never appear in an error or a log line."""

    def __init__(
        self,
        name: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        secrets: Sequence[str] = (),
        patience: Patience | None = None,
        breaker: Breaker | None = None,
    ) -> None:
        self.name = name
        self.url = url.rstrip("/")
        self.patience = patience or Patience()
        self.breaker = breaker or Breaker(name)
        self._headers = dict(headers or {})
        self._secrets = [
            form for secret in (*secrets, *_credentials(url)) if secret for form in (secret, quote(secret))
        ]
        self._session: aiohttp.ClientSession | None = None

    async def get(self, path: str, params: Mapping[str, str], spent: Spent) -> Any:
        return await self._ask("GET", path, params, None, spent)

    async def post(self, path: str, body: Mapping[str, JsonValue], spent: Spent) -> Any:
        return await self._ask("POST", path, {}, orjson.dumps(body), spent)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def refusal(self, status: int, message: str) -> Exception:
        """What an answer other than 200 means. Services with words of their own override it."""
        told = f"{self.name} answers {status}: {message}" if message else f"{self.name} answers {status}"
        if status in (401, 403):
            return Unserved(told, error="key")
        return Transient(told) if status in _TRANSIENT else Unserved(told, error="request")

    async def _ask(self, method: str, path: str, params: Mapping[str, str], data: bytes | None, spent: Spent) -> Any:
        async def attempt() -> Any:
            return await self._once(method, path, params, data, spent)

        start = time.monotonic()
        try:
            return await retried(self.name, attempt, self.patience, self.breaker)
        finally:
            spent.seconds += time.monotonic() - start

    async def _once(self, method: str, path: str, params: Mapping[str, str], data: bytes | None, spent: Spent) -> Any:
        import aiohttp

        spent.calls += 1
        try:
            async with self._open().request(
                method, self.url + path, params=dict(params), data=data, allow_redirects=False
            ) as response:
                content = await self._read(response, spent)
                if response.status == 200:
                    return self._parsed(content)
                if 300 <= response.status < 400:  # not followed: it would take the key along
                    place = self._clean(str(response.headers.get("Location")))
                    raise Unserved(f"{self.name} has moved to {place}", error="request")
                error = self.refusal(response.status, self._clean(_message(content)))
                if isinstance(error, Transient):
                    error.wait_s = _seconds(response.headers.get("Retry-After"))
                raise error
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise Transient(
                self._clean(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
            ) from None

    async def _read(self, response: aiohttp.ClientResponse, spent: Spent) -> bytes:
        content = bytearray()
        async for piece in response.content.iter_chunked(1 << 16):
            content += piece
            spent.bytes += len(piece)
            if len(content) > MAX_BYTES:
                raise Unserved(f"{self.name} answers with more than {MAX_BYTES >> 20} MB", error="size")
        return bytes(content)

    def _parsed(self, content: bytes) -> Any:
        try:
            return orjson.loads(content)
        except orjson.JSONDecodeError:
            raise Transient(self._clean(f"the answer is not JSON: {content[:80]!r}")) from None

    def _clean(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "[key]")
        return text

    def _open(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers={"Content-Type": "application/json", **self._headers},
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=10.0),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


def public(url: str) -> str:
    """The address without the user and password that it may hold; for settings, names and messages."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _credentials(url: str) -> tuple[str, ...]:
    return tuple(part for part in (urlsplit(url).netloc.rpartition("@")[0],) if part)


def _sum(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else one + other


def _message(content: bytes) -> str:
    """What the service says is wrong, wherever it puts it."""
    try:
        found = orjson.loads(content)
    except orjson.JSONDecodeError:
        return " ".join(content[:200].decode("utf-8", "replace").split())
    for name in ("error", "message", "detail"):
        if isinstance(found, dict) and name in found:
            found = found[name]
    return str(found)[:300]


def _seconds(value: str | None) -> float | None:
    try:
        return max(float(value), 0.0) if value else None
    except ValueError:
        return None  # an HTTP date; our own backoff will do
