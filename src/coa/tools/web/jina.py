"""The Jina reader as a fetcher: a service opens the page, in a real browser, and hands back Markdown.

The address is checked before it is handed over, so that nobody can use the service to ask about our inside; what the
service itself may reach is its own affair.
"""

from __future__ import annotations

import asyncio
from typing import Final

import aiohttp
import orjson

from coa.tools.documents.record import Document
from coa.tools.web.fetch import FetchFailed

HOSTED: Final = "https://r.jina.ai/"
_LARGEST: Final = 16 << 20


class JinaReader:
    def __init__(self, key: str = "", *, url: str = HOSTED, timeout_s: float = 45.0) -> None:
        self._key = key
        self._url = url
        self._timeout_s = timeout_s

    async def read(self, url: str) -> Document:
        headers = {"Accept": "application/json", "Content-Type": "application/json", "X-Retain-Images": "none"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                aiohttp.ClientSession(headers=headers, cookie_jar=aiohttp.DummyCookieJar()) as session,
                session.post(self._url, data=orjson.dumps({"url": url}), allow_redirects=False) as response,
            ):
                content = await _bounded(response)
        except TimeoutError as error:
            raise FetchFailed(
                f"the reader did not answer within {self._timeout_s:g} seconds", transient=True
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise FetchFailed(f"the reader cannot be reached ({type(error).__name__})", transient=True) from error
        return _document(response.status, content)


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    content = bytearray()
    async for piece in response.content.iter_any():
        content += piece
        if len(content) > _LARGEST:
            raise FetchFailed(f"the reader's answer is larger than {_LARGEST:,} bytes")
    return bytes(content)


def _document(status: int, content: bytes) -> Document:
    try:
        answer = orjson.loads(content)
    except orjson.JSONDecodeError:
        answer = {}
    data = answer.get("data") if isinstance(answer, dict) else None
    if status != 200 or not isinstance(data, dict) or not isinstance(data.get("content"), str):
        told = answer.get("readableMessage") or answer.get("message") if isinstance(answer, dict) else None
        raise FetchFailed(
            f"the reader answers {status}" + (f": {str(told)[:200]}" if told else ""),
            transient=status == 429 or status >= 500,
            status=status,
        )
    return Document(
        text=data["content"].strip(),
        title=str(data.get("title") or ""),
        date=str(data.get("publishedTime") or ""),
        note="read by the Jina reader",
    )
