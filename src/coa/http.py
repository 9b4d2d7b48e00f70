"""Requests to services: model servers, search engines, embedding and retrieval servers.

One client and one policy for failures. A permanent failure (a wrong key, a bad request, an empty account) is reported
at once. After a temporary one (a dropped connection, a time-out, 429, most of 5xx) the client tries again after a pause
that doubles each time and has jitter; a `Retry-After` lengthens it. A circuit breaker can leave a service that keeps
failing alone for a while, so that a thousand runs do not each wait for it. The result is always an answer or
`Unserved`, whose message may be shown to a model: keys never appear in it.

It uses aiohttp and orjson and no SDK, because with thousands of runs at once the client's CPU time matters. aiohttp is
imported with the first request, because most commands never make one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import sys
import time
from codecs import BOM_UTF8
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote

import orjson

from coa.addresses import basic_auth, public
from coa.errors import CoaError

if TYPE_CHECKING:
    import aiohttp

log = logging.getLogger(__name__)
Answer = TypeVar("Answer")
MAX_BYTES: Final = 8 << 20
_LONGEST_PAUSE_S: Final = 30.0
_TRANSIENT: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})


class Unserved(CoaError):
    """The service did not answer the request, and repeating it now is of no use."""

    def __init__(
        self, message: str, *, hint: str | None = None, error: str = "service", status: int | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.error = error
        """For `Observation.meta`: service, quota, key, request, shape, size, breaker."""
        self.status = status
        """Of the answer, if the service answered and refused."""


class Transient(Exception):
    """A failure that is worth another attempt. `wait_s` is the pause that the service asked for."""

    def __init__(self, reason: str, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True)
class Patience:
    """How long and how often to try."""

    attempts: int = 3
    timeout_s: float = 20.0
    """For one attempt, including everything."""
    connect_s: float = 10.0
    silence_s: float | None = None
    """How long the service may send nothing."""
    backoff_s: float = 0.5
    """Before the second attempt; doubled each time, with jitter, up to 30 seconds."""
    max_wait_s: float = 30.0
    """The longest pause that a service may ask for."""
    waits_out: bool = False
    """If a service asks for a longer pause: whether to try again after `max_wait_s`, or to give up at once."""


@dataclass
class Breaker:
    """Opens after `failures` failures in a row; after a rest it lets one call through to try again."""

    name: str
    failures: int = 5
    rest_s: float = 30.0
    clock: Callable[[], float] = time.monotonic
    _in_a_row: int = field(default=0, init=False)
    _closed_at: float = field(default=0.0, init=False)
    """When the next call may pass, if the breaker is open."""

    def check(self) -> None:
        """Raises while the service gets no requests because it failed too often."""
        if self._in_a_row < self.failures:
            return
        left = self._closed_at - self.clock()
        if left > 0:
            raise Unserved(
                f"{self.name} failed {self._in_a_row} times in a row and is left alone for {left:.0f} more seconds",
                error="breaker",
            )
        self._closed_at = self.clock() + self.rest_s  # this call tries; the others keep waiting

    def passed(self) -> None:
        self._in_a_row = 0

    def failed(self) -> None:
        self._in_a_row += 1
        if self._in_a_row >= self.failures:
            self._closed_at = self.clock() + self.rest_s


def pause_s(patience: Patience, failures: int) -> float:
    """How long to wait after that many failures in a row; doubled with each, with jitter."""
    return min(patience.backoff_s * 2.0 ** min(failures - 1, 16), _LONGEST_PAUSE_S) * random.uniform(0.5, 1.5)


async def retried(
    name: str,
    attempt: Callable[[], Awaitable[Answer]],
    patience: Patience,
    breaker: Breaker | None = None,
    *,
    failure: type[Unserved] = Unserved,
) -> Answer:
    """Await `attempt()` until it passes, refuses, or the patience ends. A refusal shows that the service is alive."""
    breaker = breaker or Breaker(name, failures=sys.maxsize)  # one that never opens
    for number in range(1, patience.attempts + 1):
        breaker.check()
        try:
            async with asyncio.timeout(patience.timeout_s):
                answer = await attempt()
        except Unserved:
            breaker.passed()
            raise
        except (Transient, TimeoutError) as error:
            breaker.failed()
            reason = str(error) or f"no answer within {patience.timeout_s:g} seconds"
            if number == patience.attempts:
                tries = "" if number == 1 else f" in {number} attempts"
                raise failure(f"{name} did not answer{tries}: {reason}") from error
            asked = (error.wait_s if isinstance(error, Transient) else None) or 0.0
            if asked > patience.max_wait_s and not patience.waits_out:
                raise failure(f"{name} asks to wait {asked:.0f} seconds: {reason}", error="quota") from error
            pause = pause_s(patience, number)
            log.info("%s: attempt %d failed (%s)", name, number, reason)
            await asyncio.sleep(max(pause, min(asked, patience.max_wait_s)))
        else:
            breaker.passed()
            return answer
    raise AssertionError("unreachable: the last attempt returns or raises")


@dataclass
class Spent:
    """What requests cost. `dollars` is None if no price is known."""

    calls: int = 0
    bytes: int = 0
    seconds: float = 0.0
    credits: float | None = None
    dollars: float | None = None

    def __add__(self, other: Spent) -> Spent:
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Spent(*(two if one is None else one if two is None else one + two for one, two in pairs))

    def meta(self) -> dict[str, Any]:
        """For `Observation.meta`."""
        known = {"credits": self.credits, "dollars": self.dollars}
        return {
            "calls": self.calls, "bytes": self.bytes, "service_seconds": round(self.seconds, 4),
            **{name: value for name, value in known.items() if value is not None},
        }  # fmt: skip


class Client:
    """Talks JSON to one service. Opened by the first request, in the event loop that makes it.

    A user and password in the address are sent as basic authentication, in place of a key. They and the `secrets` never
    appear in an error or a log line. Redirects are not followed: they would take the key along.
    """

    failure: type[Unserved] = Unserved
    max_bytes: int | None = MAX_BYTES
    """The largest answer that is accepted; None for no limit."""
    redirects: bool = False

    def __init__(
        self,
        name: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        secrets: Sequence[str] = (),
        patience: Patience | None = None,
        breaker: bool = True,
        pool: int = 100,
    ) -> None:
        self.name, self.url, self.patience = name, public(url).rstrip("/"), patience or Patience()
        self._breaker = Breaker(name) if breaker else None
        self._headers = {"Content-Type": "application/json", **(headers or {})}
        authorization, hidden = basic_auth(url)
        if authorization:  # a request has one such header, and the address says which this server wants
            self._headers["Authorization"] = authorization
        self._secrets = [form for secret in (*secrets, *hidden) if secret for form in (secret, quote(secret))]
        self._pool = pool
        self._session: aiohttp.ClientSession | None = None

    async def get(self, path: str, params: Mapping[str, str] | None = None, spent: Spent | None = None) -> Any:
        return await self._ask("GET", path, spent or Spent(), params=params)

    async def post(self, path: str, body: Mapping[str, Any], spent: Spent | None = None) -> Any:
        return await self._ask("POST", path, spent or Spent(), data=orjson.dumps(body))

    async def stream(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[Any, None]:
        """Server-sent events, one JSON object each. This is a single attempt, to be made within `retry`.

        A server that answers with plain JSON nevertheless gives one event.
        """
        import aiohttp

        try:
            data = orjson.dumps(body)
            async with self._open().post(self.url + path, data=data, allow_redirects=self.redirects) as response:
                if response.status != 200:
                    raise self._refused(response, path, await response.read())
                if response.content_type == "application/json":
                    yield self._parsed(await response.read())
                    return
                async for line in response.content:
                    line = line.removeprefix(BOM_UTF8)
                    if not line.startswith(b"data:"):
                        continue
                    if (content := line[5:].strip()) == b"[DONE]":
                        return
                    event = self._parsed(content)
                    if isinstance(event, dict) and event.get("error"):
                        raise self._broken(event["error"])
                    yield event
                raise Transient("the stream ended without [DONE]")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Transient(self._clean(_named(error))) from None

    async def retry(self, attempt: Callable[[], Awaitable[Answer]]) -> Answer:
        """Await `attempt()` again while its failure is transient."""
        return await retried(self.name, attempt, self.patience, self._breaker, failure=self.failure)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def refusal(self, status: int, message: str, path: str) -> Exception:
        """The error for a status other than 200. Clients of services with special messages override it."""
        said = f"{self.name} answers {status}: {message}" if message else f"{self.name} answers {status}"
        if status in _TRANSIENT:
            return Transient(said)
        return self.failure(said, error="key" if status in (401, 403) else "request", status=status)

    async def _ask(self, method: str, path: str, spent: Spent, **content: Any) -> Any:
        import aiohttp

        async def attempt() -> Any:
            spent.calls += 1
            request = self._open().request(method, self.url + path, allow_redirects=self.redirects, **content)
            try:
                async with request as response:
                    body = await self._read(response, spent)
                    if response.status == 200:
                        return self._parsed(body)
                    raise self._refused(response, path, body)
            except (aiohttp.ClientError, OSError) as error:  # the message may hold the address, and that the key
                raise Transient(self._clean(_named(error))) from None

        start = time.monotonic()
        try:
            return await self.retry(attempt)
        finally:
            spent.seconds += time.monotonic() - start

    async def _read(self, response: aiohttp.ClientResponse, spent: Spent) -> bytes:
        if self.max_bytes is None:
            whole = await response.read()
            spent.bytes += len(whole)
            return whole
        content = bytearray()
        async for piece in response.content.iter_chunked(1 << 16):
            content += piece
            spent.bytes += len(piece)
            if len(content) > self.max_bytes:
                raise self.failure(f"{self.name} answers with more than {self.max_bytes >> 20} MB", error="size")
        return bytes(content)

    def _parsed(self, content: bytes) -> Any:
        try:
            return lenient_json(content)
        except ValueError:
            raise Transient(self._clean(f"the answer is not JSON: {content[:80]!r}")) from None

    def _refused(self, response: aiohttp.ClientResponse, path: str, content: bytes) -> Exception:
        if 300 <= response.status < 400:
            place = self._clean(str(response.headers.get("Location")))
            return self.failure(f"{self.name} has moved to {place}", error="request", status=response.status)
        error = self.refusal(response.status, self._clean(_message(content)), path)
        if isinstance(error, Transient):
            error.wait_s = _seconds(response.headers.get("Retry-After"))
        return error

    def _broken(self, error: object) -> Exception:
        """The error for a server that fails in the middle of a stream."""
        code = error.get("code") if isinstance(error, dict) else None
        reason = self._clean(str(error.get("message", error) if isinstance(error, dict) else error)[:300])
        if code in _TRANSIENT:
            return Transient(reason)
        return self.failure(f"{self.name} fails: {reason}", error="request")

    def _clean(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "[key]")
        return text

    def _open(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None:
            patience = self.patience
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._pool),
                headers=self._headers,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(None, sock_connect=patience.connect_s, sock_read=patience.silence_s),
                read_bufsize=1 << 18,
            )
        return self._session


def lenient_json(content: bytes) -> Any:
    """A value that a server sent, even if it is not quite JSON: half of a surrogate pair, Infinity, a byte order mark.

    Raises a `ValueError` for anything else.
    """
    content = content.removeprefix(BOM_UTF8)
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        pass
    try:
        value = json.loads(content, parse_constant=lambda _: None)
        return orjson.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    except RecursionError:
        raise ValueError("too deeply nested") from None


def _message(content: bytes) -> str:
    """The error message in the service's answer, wherever the service puts it."""
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
        return None  # an HTTP date; our backoff will do


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
