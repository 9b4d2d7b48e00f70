"""Answers that are written while a run goes on, and requests whose client may go away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Final

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from coa.serve.api_error import ApiError
from coa.serve.run import Run
from coa.serve.service import Service

HEARTBEAT: Final = b": keep-alive\n\n"
"""A comment, which every reader of server-sent events skips."""
DONE: Final = b"data: [DONE]\n\n"
"""The last message of a stream of the OpenAI APIs."""
_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx passes events on at once
]


class EventStream:
    """A response of server-sent events. `chunks` are whole events, several at a time where there are several.

    The response begins with the first of them: before that, `chunks` may raise `ApiError`. When the client goes away,
    `chunks` is closed where it waits, so that its `finally` blocks run.
    """

    def __init__(self, chunks: AsyncIterator[bytes], headers: Mapping[str, str] | None = None) -> None:
        self._chunks = chunks
        self._headers = [*_HEADERS, *((name.encode(), value.encode()) for name, value in (headers or {}).items())]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writing = asyncio.ensure_future(self._write(send))
        listening = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({writing, listening}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            listening.cancel()
            if not writing.done():
                writing.cancel()
            await asyncio.gather(writing, listening, return_exceptions=True)
        if not writing.cancelled() and (error := writing.exception()) is not None:
            raise error

    async def _write(self, send: Send) -> None:
        begun = False
        try:
            async for chunk in self._chunks:
                if not begun:
                    await send({"type": "http.response.start", "status": 200, "headers": self._headers})
                    begun = True
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            close = getattr(self._chunks, "aclose", None)
            if close is not None:
                await close()


async def finished(request: Request, run: Run, service: Service) -> None:
    """Wait until the run is over. If the client goes away first, the run is cancelled."""
    waiting = asyncio.ensure_future(run.wait())
    listening = asyncio.ensure_future(_gone(request.receive))
    try:
        async with service.streaming(run):
            await asyncio.wait({waiting, listening}, return_when=asyncio.FIRST_COMPLETED)
    except TimeoutError:
        raise ApiError(504, "the run took longer than the server allows", code="timeout") from None
    finally:
        listening.cancel()
        waiting.cancel()
        await asyncio.gather(listening, waiting, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    """Returns when the client has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass
