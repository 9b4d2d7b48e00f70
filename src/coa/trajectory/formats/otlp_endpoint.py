"""Sends spans to an OpenTelemetry endpoint: OTLP over HTTP, as compressed protobuf.

Keys are headers. They come from the environment, in the form that OpenTelemetry defines for
`OTEL_EXPORTER_OTLP_HEADERS`: `name=value,other=value`, with `%20` and the like for special characters.
"""

from __future__ import annotations

import gzip
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Final
from urllib.parse import unquote, urlsplit, urlunsplit

from pydantic import field_validator

from coa.addresses import is_host, public
from coa.errors import ConfigError
from coa.http import Client, Patience, Spent, Transient, Unserved
from coa.trajectory.formats.otlp_wire import Span, rejected, to_protobuf
from coa.trajectory.types import Frozen

log = logging.getLogger(__name__)
HEADERS_ENV: Final = "OTEL_EXPORTER_OTLP_HEADERS"
PATH: Final = "/v1/traces"
PATIENCE: Final = Patience(attempts=4, timeout_s=30.0, connect_s=5.0)
_TRANSIENT: Final = frozenset({429, 502, 503, 504})
"""The only answers after which the protocol allows to send again."""


_MOST_SPANS: Final = 500
_MOST_BYTES: Final = 2 << 20


class OtlpConfig(Frozen):
    """Where to send the spans of runs."""

    endpoint: str | None = None
    """Address of an OpenTelemetry endpoint, such as http://localhost:4318, which gets the spans of each run when the
    run ends. An address without a path gets /v1/traces. Default: nothing is sent."""
    content: bool = False
    """Whether spans include the texts of users, model and tools. Without them they have only names, times, token
    counts, scores and errors."""
    headers_env: str = HEADERS_ENV
    """Environment variable with the headers to send, such as a key: `name=value,name=value`."""
    service_name: str = "coa"
    """Name under which the endpoint lists the runs."""

    @field_validator("endpoint")
    @classmethod
    def _address(cls, given: str | None) -> str | None:
        if given is not None:
            traces_url(given)
        return given


class OtlpUnserved(Unserved):
    """An endpoint that did not answer, or refused."""

    def __init__(
        self, message: str, *, hint: str | None = None, error: str = "service", status: int | None = None
    ) -> None:
        down = "check that the server runs and that the address is right" if error == "service" else None
        super().__init__(message, hint=hint or down, error=error, status=status)


def is_endpoint(out: object) -> bool:
    """Whether the target of an export is an address, not a file."""
    return isinstance(out, str) and out.lower().startswith(("http://", "https://"))


def traces_url(endpoint: str) -> str:
    """The address that spans are sent to. Raises a `ValueError` for what is none."""
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not is_host(endpoint):
        raise ValueError(f"{public(endpoint)!r} is not an address; write it like http://localhost:4318")
    if "@" in parts.netloc:
        raise ValueError(f"an address must not hold a password; put it into a header with {HEADERS_ENV}")
    return urlunsplit(parts._replace(path=PATH)) if parts.path in ("", "/") else endpoint


def headers_in(variable: str) -> dict[str, str]:
    """The headers in an environment variable; none if it is not set."""
    found = {}
    for item in os.environ.get(variable, "").split(","):
        name, equals, value = (unquote(part.strip()) for part in item.partition("="))
        if not item.strip():
            continue
        if not (name and equals and name.isascii() and (name + value).isprintable()):
            raise ConfigError(f"{variable} does not hold headers", hint="write them as name=value,name=value")
        found[name] = value
    return found


class OtlpEndpoint(Client):
    """One endpoint. `send` raises `OtlpUnserved` with what to do about it."""

    failure = OtlpUnserved

    def __init__(self, config: OtlpConfig, *, patience: Patience | None = None) -> None:
        if config.endpoint is None:
            raise ConfigError("there is no endpoint to send spans to", hint="set otlp.endpoint")
        try:
            url = traces_url(config.endpoint)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        self._config = config
        headers = headers_in(config.headers_env)
        super().__init__(
            public(url), url, headers={**headers, "Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"},
            secrets=[value for value in headers.values() if len(value) >= 4], patience=patience or PATIENCE,
        )  # fmt: skip

    def packed(self, spans: Iterable[Span]) -> bytes:
        """A request for `send`."""
        return gzip.compress(to_protobuf(spans, self._config.service_name), compresslevel=6, mtime=0)

    async def send(self, packed: bytes) -> None:
        import aiohttp

        spent = Spent()

        async def attempt() -> bytes:
            try:
                async with self._open().post(self.url, data=packed, allow_redirects=False) as response:
                    body = await self._read(response, spent)
                    if 200 <= response.status < 300:
                        return body
                    raise self._refused(response, "", body)
            except (aiohttp.ClientError, OSError) as error:
                raise Transient(self._clean(f"{type(error).__name__}: {error}")) from None

        count, why = rejected(await self.retry(attempt))
        if count:
            log.warning("%s refused %d spans: %s", self.name, count, self._clean(why[:300]) or "it does not say why")

    def refusal(self, status: int, message: str, path: str) -> Exception:
        said = f"{self.name} answers {status}" + (f": {message}" if message else "")
        if status in _TRANSIENT:
            return Transient(said)
        hint = None
        if status in (401, 403):
            hint = f"put the key into {self._config.headers_env}, such as Authorization=Bearer%20KEY"
        elif status in (404, 405):
            hint = f"check the path of the address; for most servers it is {PATH}"
        elif status == 413:
            hint = "the runs are too large for this server; send them without content"
        return self.failure(said, hint=hint, error="key" if status in (401, 403) else "request", status=status)


def in_batches(runs: Iterable[Sequence[Span]]) -> Iterator[list[Span]]:
    """The spans of several runs together, up to what a server takes at a time; a run is never divided."""
    batch: list[Span] = []
    size = 0
    for spans in runs:
        length = sum(map(_size, spans))
        if batch and (len(batch) + len(spans) > _MOST_SPANS or size + length > _MOST_BYTES):
            yield batch
            batch, size = [], 0
        batch += spans
        size += length
    if batch:
        yield batch


def _size(span: Span) -> int:
    """About how many bytes it takes."""
    return 200 + sum(len(key) + len(value) if isinstance(value, str) else 20 for key, value in span.attributes.items())
