"""The read-only HTTP API of the viewer, and its page. Every address is relative, so it can be mounted anywhere."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from coa.errors import CoaError
from coa.view.as_json import as_json
from coa.view.reading import Missing, Reader
from coa.web.pages import HEADERS, page, static_routes

log = logging.getLogger(__name__)
_POLL_S: Final = 0.5
_HEARTBEAT_S: Final = 10.0
_AT_ONCE: Final = 4
"""Number of questions to the index at a time. Opening a large record takes memory."""
_STREAM_HEADERS: Final = {**HEADERS, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def routes(reader: Reader) -> list[BaseRoute]:
    """The page at the root, its files, and the API. Only GET and HEAD are answered."""
    api = _Api(reader)
    return [
        Route("/", _view),
        *static_routes(),
        Route("/api/index.json", api.answer(lambda _: reader.overview())),
        Route("/api/runs.json", api.answer(lambda request: reader.runs(_query(request)))),
        Route("/api/runs/{run}.json", api.answer(lambda request: reader.run(request.path_params["run"]))),
        Route("/api/runs/{run}/tokens.json", api.answer(lambda request: reader.tokens(request.path_params["run"]))),
        Route("/api/runs/{run}/raw.json", api.answer(lambda request: reader.raw(request.path_params["run"]))),
        Route("/api/folders/{folder}.json", api.answer(lambda request: reader.folder(request.path_params["folder"]))),
        Route(
            "/api/folders/{folder}/steps/{step:int}.json",
            api.answer(lambda request: reader.step(request.path_params["folder"], request.path_params["step"])),
        ),
        Route("/api/compare.json", api.answer(lambda request: reader.compare(_query(request)))),
        Route("/api/findings.json", api.answer(lambda request: reader.findings(_query(request)))),
        Route("/api/problems.json", api.answer(lambda _: reader.problems())),
        Route("/api/changes", api.changes),
    ]


async def _view(_: Request) -> Response:
    return page("view.html", name="view", script="view.js")


def _query(request: Request) -> Mapping[str, str]:
    return {name: value for name, value in request.query_params.items() if value != ""}


def failure(status: int, message: str) -> Response:
    """An error in the shape that all pages read."""
    return _json({"error": {"message": message}}, status)


class _Api:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._places = asyncio.Semaphore(_AT_ONCE)

    def answer(self, ask: Callable[[Request], Any]) -> Callable[[Request], Any]:
        """A handler that asks the reader in a thread, and turns what it refuses into an error for the page."""

        async def handler(request: Request) -> Response:
            try:
                async with self._places:
                    body = await asyncio.to_thread(lambda: as_json(ask(request)))
                return Response(body, media_type="application/json", headers=dict(HEADERS))
            except Missing as error:
                return failure(404, error.message)
            except CoaError as error:
                return failure(400, str(error))
            except Exception:  # the border: a page that cannot be made must not end the others
                log.exception("the request %s failed", request.url.path)
                return failure(500, "an error of the viewer; the terminal it was started in says more")

        return handler

    async def changes(self, _: Request) -> Response:
        return StreamingResponse(self._changes(), media_type="text/event-stream", headers=dict(_STREAM_HEADERS))

    async def _changes(self) -> AsyncIterator[bytes]:
        """An event whenever something changed; a comment now and then, so that proxies keep the connection."""
        last, quiet = None, 0.0
        while not self._reader.is_closing:
            revision = await asyncio.to_thread(self._reader.revision)
            if revision != last:
                last, quiet = revision, 0.0
                progress = await asyncio.to_thread(self._reader.progress)
                yield b"data: " + as_json({"revision": sum(revision), "progress": progress}) + b"\n\n"
            elif (quiet := quiet + _POLL_S) >= _HEARTBEAT_S:
                quiet = 0.0
                yield b": still here\n\n"
            await asyncio.sleep(_POLL_S)


def _json(value: object, status: int = 200) -> Response:
    return Response(as_json(value), status, media_type="application/json", headers=dict(HEADERS))
