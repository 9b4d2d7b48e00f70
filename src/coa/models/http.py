"""Requests to model servers: one connection pool, bounded waits, retries with backoff and jitter.

aiohttp and orjson, no SDK: at thousands of runs at a time the client's CPU is what counts.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import orjson

from coa.errors import ModelError

log = logging.getLogger(__name__)
_TRANSIENT: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})


@dataclass(frozen=True, slots=True)
class Patience:
    """How long and how often to try."""

    attempts: int = 5
    timeout_s: float = 600.0
    """For one attempt, all in."""
    connect_s: float = 10.0
    silence_s: float = 180.0
    """Without a single byte."""
    backoff_s: float = 0.5
    """Before the second attempt; doubled each time, with jitter, up to 30 seconds."""


class _Transient(Exception):
    """Worth another try. `wait_s` is what the server asked for."""

    def __init__(self, reason: str, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


class Refused(ModelError):
    """The server understood and said no; asking again would not help."""

    status: int | None = None


class Transport:
    """Talks JSON to one server. Opened by the first request, in the event loop that makes it."""

    def __init__(
        self, url: str, *, headers: Mapping[str, str] | None = None, patience: Patience | None = None, pool: int = 512
    ) -> None:
        self.url = url.rstrip("/")
        self.patience = patience or Patience()
        self._headers = {"Content-Type": "application/json", **(headers or {})}
        self._pool = pool
        self._session: aiohttp.ClientSession | None = None

    async def get(self, path: str) -> Any:
        return await self._retried("GET", path, None)

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        return await self._retried("POST", path, orjson.dumps(body))

    async def stream(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[Any, None]:
        """Server-sent events, one JSON object each. A stream that breaks is an error; the caller may begin again.

        A server that answers with plain JSON all the same gives one event.
        """
        try:
            async with self._open().post(self.url + path, data=orjson.dumps(body)) as response:
                if response.status != 200:
                    raise _refusal(response, await response.read())
                if response.content_type == "application/json":
                    yield _parsed(await response.read())
                    return
                async for line in response.content:
                    if not line.startswith(b"data:"):
                        continue
                    data = line[5:].strip()
                    if data == b"[DONE]":
                        return
                    event = _parsed(data)
                    if isinstance(event, dict) and event.get("error"):
                        raise self._broken(event["error"])
                    yield event
                raise _Transient("the stream ended without [DONE]")
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise _Transient(_told(error)) from error

    async def retry(self, attempt: Any) -> Any:
        """Await `attempt()` again and again while its failure is transient."""
        for number in range(1, self.patience.attempts + 1):
            try:
                return await attempt()
            except _Transient as error:
                if number == self.patience.attempts:
                    raise ModelError(
                        f"{self.url} did not answer in {number} attempts; the last one: {error}",
                        hint="check that the model server runs and that the address is right",
                    ) from error
                wait = min(self.patience.backoff_s * 2 ** (number - 1), 30.0) * random.uniform(0.5, 1.5)
                log.info("%s: attempt %d failed (%s)", self.url, number, error)
                await asyncio.sleep(max(wait, min(error.wait_s or 0.0, 60.0)))
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _retried(self, method: str, path: str, data: bytes | None) -> Any:
        return await self.retry(lambda: self._once(method, path, data))

    async def _once(self, method: str, path: str, data: bytes | None) -> Any:
        try:
            async with self._open().request(method, self.url + path, data=data) as response:
                content = await response.read()
                if response.status != 200:
                    raise _refusal(response, content)
                return _parsed(content)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _Transient(_told(error)) from error

    def _broken(self, error: object) -> Exception:
        """For a server that gives up in the middle of a stream."""
        code = error.get("code") if isinstance(error, dict) else None
        reason = str(error.get("message", error) if isinstance(error, dict) else error)[:300]
        return _Transient(reason) if code in _TRANSIENT else ModelError(f"{self.url} fails: {reason}")

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._pool),
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(
                    total=self.patience.timeout_s,
                    sock_connect=self.patience.connect_s,
                    sock_read=self.patience.silence_s,
                ),
                read_bufsize=1 << 18,
            )
        return self._session


def _parsed(content: bytes) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise _Transient(f"the answer is not JSON: {content[:80]!r}") from error


def _refusal(response: aiohttp.ClientResponse, content: bytes) -> Exception:
    reason = f"{response.status} {response.reason}: {_message(content)}"
    if response.status in _TRANSIENT:
        return _Transient(reason, _seconds(response.headers.get("Retry-After")))
    hint = "set the key that the server wants (--api-key-env NAME)" if response.status in (401, 403) else None
    refused = Refused(f"{response.url} refuses: {reason}", hint=hint)
    refused.status = response.status
    return refused


def _message(content: bytes) -> str:
    """What the server says is wrong, wherever it puts it."""
    try:
        data = orjson.loads(content)
        error = data.get("error", data) if isinstance(data, dict) else data
        found = error.get("message", error) if isinstance(error, dict) else error
        return str(found)[:300]
    except orjson.JSONDecodeError:
        return content[:300].decode("utf-8", "replace")


def _seconds(value: str | None) -> float | None:
    try:
        return max(float(value), 0.0) if value else None
    except ValueError:
        return None  # an HTTP date; our own backoff will do


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
