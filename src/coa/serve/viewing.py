"""The viewer at /view/, over the runs of this server or over folders that its settings name.

It has its own index and a process that keeps it up to date, so it is opened when somebody first asks for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.types import Receive, Scope, Send

from coa.serve.config import ServeConfig
from coa.trajectory.store import to_append
from coa.view.api import routes as view_routes
from coa.view.index import IndexWriter, cache_file
from coa.view.indexer import Indexer
from coa.view.reading import Reader

PATH: Final = "/view"


def shown_folders(config: ServeConfig, out: Path | None, *, keys: bool) -> list[Path]:
    """What the viewer shows: the folders of the settings, else this server's runs.

    With keys, runs belong to those who started them, so that other callers must not see them: then only folders that
    the settings name are shown, to every holder of a key.
    """
    if config.view:
        return list(config.view)
    if keys or not config.page:
        return []
    return [to_append(out)] if out is not None else [config.state_folder() / "runs.sqlite"]


class MountedViewer:
    """An application that becomes the viewer with its first request."""

    def __init__(self, roots: Sequence[Path], cache: Path | None = None) -> None:
        self._roots, self._cache = list(roots), cache
        self._stack = ExitStack()
        self._app: Router | None = None
        self._reader: Reader | None = None
        self._opening = asyncio.Lock()

    def routes(self) -> list[BaseRoute]:
        if not self._roots:
            return []
        return [Route(PATH, _with_slash), Mount(PATH, self)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._opening:
            if self._app is None:
                self._app = await asyncio.to_thread(self._open)
        await self._app(scope, receive, send)

    def _open(self) -> Router:
        index = cache_file(self._roots, self._cache)
        IndexWriter(index).close()
        self._reader = reader = Reader(index, [root.name for root in self._roots])
        self._stack.callback(reader.close)
        self._stack.enter_context(Indexer(index, self._roots))
        return Router(view_routes(reader), redirect_slashes=False)

    def stop(self) -> None:
        """End the streams of open pages, which would otherwise be cut off."""
        if self._reader is not None:
            self._reader.is_closing = True

    def close(self) -> None:
        self._stack.close()


async def _with_slash(_: Request) -> Response:
    """The page's addresses are relative to its folder."""
    return RedirectResponse(f"{PATH}/")
