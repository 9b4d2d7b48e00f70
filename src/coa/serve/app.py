"""The web application: all protocols over one service, behind one guard."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp

from coa.serve import chat, mcp, models, openapi, page, responses
from coa.serve.bodies import json_response
from coa.serve.guard import Guard
from coa.serve.keys import Keys
from coa.serve.metrics import CONTENT_TYPE
from coa.serve.service import Service
from coa.serve.viewing import MountedViewer


def build_app(service: Service, keys: Keys, viewer: MountedViewer) -> ASGIApp:
    """A handler may raise `ApiError` anywhere before its answer begins."""
    routes: list[BaseRoute] = [*_upkeep(service), *openapi.routes(service.config)]
    if service.config.api:
        routes += [*responses.routes(service), *chat.routes(service), *models.routes(service)]
    if service.config.mcp:
        routes += mcp.routes(service)
    if service.config.page:
        routes += page.routes(service)
    routes += viewer.routes()
    # A bare router: Starlette's own application would answer errors itself, and not in the standard shape.
    return Guard(Router(routes, redirect_slashes=False), service.config, keys, service.metrics)


def _upkeep(service: Service) -> list[BaseRoute]:
    async def health(request: Request) -> Response:
        return json_response({"status": "ok"})

    async def ready(request: Request) -> Response:
        if service.draining:
            return json_response({"status": "shutting down"}, 503)
        return json_response({"status": "ready", "models": list(service.agents), "active": service.active})

    async def metrics(request: Request) -> Response:
        return Response(service.metrics.render(), media_type=CONTENT_TYPE)

    return [Route("/health", health), Route("/ready", ready), Route("/metrics", metrics)]
