"""The web application: all protocols over one service, behind one guard."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from coa.serve import chat, models, responses
from coa.serve.api_error import ApiError
from coa.serve.guard import Guard
from coa.serve.keys import Keys
from coa.serve.service import Service


def build_app(service: Service, keys: Keys) -> ASGIApp:
    routes: list[BaseRoute] = [
        *responses.routes(service),
        *chat.routes(service),
        *models.routes(service),
        *_upkeep(service),
    ]
    if service.config.page:
        from coa.serve import page

        routes += page.routes(service)
    app = Starlette(routes=routes, exception_handlers={HTTPException: _unknown, ApiError: _refused})
    return Guard(app, service.config, keys, service.metrics)


def json_response(value: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json")


def _upkeep(service: Service) -> list[BaseRoute]:
    async def health(request: Request) -> Response:
        return json_response({"status": "ok"})

    async def ready(request: Request) -> Response:
        if service.draining:
            return json_response({"status": "shutting down"}, 503)
        return json_response({"status": "ready", "models": list(service.agents), "active": service.active})

    async def metrics(request: Request) -> Response:
        service.metrics.set_load(active=service.active - service.queued, queued=service.queued)
        return Response(service.metrics.render(), media_type="text/plain; version=0.0.4")

    return [Route("/health", health), Route("/ready", ready), Route("/metrics", metrics)]


async def _refused(request: Request, error: Exception) -> Response:
    raise error  # to the guard, which knows how errors look


async def _unknown(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        raise ApiError(405, f"{request.method} is not possible for {request.url.path}", code="method_not_allowed")
    raise ApiError(error.status_code, f"there is nothing at {request.url.path}", code="not_found")
