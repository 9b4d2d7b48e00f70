"""MCP over streamable HTTP, as one route of the web application. Keys, hosts and body limits are the application's."""

from __future__ import annotations

import asyncio
from typing import Final

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from coa.serve.mcp.server import mcp_server
from coa.serve.service import Service

PATH: Final = "/mcp"


def routes(service: Service) -> list[BaseRoute]:
    return [Route(PATH, _Endpoint(service))]


class _Endpoint:
    """Answers requests of the current protocol one by one, and keeps the sessions of clients that speak an earlier one.

    A session outlives the request that opened it, so a task beside the service owns all of them. It starts with the
    first request.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._sessions: asyncio.Future[StreamableHTTPSessionManager] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._sessions is None:
            self._sessions = asyncio.get_running_loop().create_future()
            self._service.accompany(self._own_sessions(self._sessions))
        sessions = await asyncio.shield(self._sessions)
        scope["state"]["left"] = left = asyncio.Event()
        try:
            await sessions.handle_request(scope, receive, send)
        finally:
            left.set()

    async def _own_sessions(self, opened: asyncio.Future[StreamableHTTPSessionManager]) -> None:
        config = self._service.config
        ready: asyncio.Future[Service] = asyncio.get_running_loop().create_future()
        ready.set_result(self._service)
        sessions = StreamableHTTPSessionManager(
            mcp_server(config, ready),
            max_request_body_size=config.max_body_bytes,
            max_sessions=config.max_connections,
        )
        async with sessions.run():
            opened.set_result(sessions)
            await asyncio.Event().wait()
