"""A model that a tool asks for help: to summarise a page, to look at an image. One request, no conversation.

Tools do not know `coa.models`, which is for the model that plays the agents; this is the little they need.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import orjson

_TRANSIENT: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_LARGEST: Final = 8 << 20


class EndpointFailed(Exception):
    """The endpoint gave nothing that can be used."""


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible server, its model, and the key, which is sent to it and shown nowhere."""

    url: str
    model: str
    key: str = ""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], prefix: str) -> Endpoint | None:
        """`PREFIX_URL`, `PREFIX_MODEL` and `PREFIX_KEY`; None where there is no URL."""
        url = environment.get(f"{prefix}_URL", "")
        return cls(url, environment.get(f"{prefix}_MODEL", ""), environment.get(f"{prefix}_KEY", "")) if url else None

    def __repr__(self) -> str:
        return f"Endpoint({self.url!r}, {self.model!r})"

    @property
    def address(self) -> str:
        base = self.url.rstrip("/")
        if base.endswith("/chat/completions"):
            return base
        return f"{base}/chat/completions" if base.endswith("/v1") else f"{base}/v1/chat/completions"


async def ask(
    endpoint: Endpoint, messages: list[dict[str, Any]], *, max_tokens: int, timeout_s: float, attempts: int = 3
) -> str:
    """The text of the answer. Tried again where the failure may pass; `timeout_s` covers all attempts."""
    body = {"messages": messages, "max_tokens": max_tokens, "temperature": 0}
    if endpoint.model:
        body["model"] = endpoint.model
    headers = {"Content-Type": "application/json"}
    if endpoint.key:
        headers["Authorization"] = f"Bearer {endpoint.key}"
    try:
        async with asyncio.timeout(timeout_s), aiohttp.ClientSession(headers=headers) as session:
            for attempt in range(1, attempts + 1):
                status, content = await _post(session, endpoint.address, orjson.dumps(body))
                if status == 200:
                    return _text(content)
                if status not in _TRANSIENT or attempt == attempts:
                    raise EndpointFailed(
                        f"the model endpoint answers {status}: {content[:200].decode('utf-8', 'replace')}"
                    )
                await asyncio.sleep(0.5 * 2**attempt * random.uniform(0.5, 1.0))
    except TimeoutError as error:
        raise EndpointFailed(f"the model endpoint did not answer within {timeout_s:g} seconds") from error
    except (aiohttp.ClientError, OSError) as error:
        raise EndpointFailed(f"the model endpoint cannot be reached ({type(error).__name__})") from error
    raise AssertionError("unreachable: the last attempt returns or raises")


async def _post(session: aiohttp.ClientSession, address: str, body: bytes) -> tuple[int, bytes]:
    async with session.post(address, data=body, allow_redirects=False) as response:
        content = await response.content.read(_LARGEST)
        while len(content) < _LARGEST and (more := await response.content.read(_LARGEST - len(content))):
            content += more
        return response.status, content


def _text(content: bytes) -> str:
    try:
        text = orjson.loads(content)["choices"][0]["message"]["content"]
    except (orjson.JSONDecodeError, KeyError, IndexError, TypeError) as error:
        raise EndpointFailed("the model endpoint answers in a form that cannot be read") from error
    if not isinstance(text, str) or not text.strip():
        raise EndpointFailed("the model endpoint answers without text")
    return text.strip()
