"""`GET /v1/models` and `GET /v1/models/{id}`: the agents that this server offers."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from coa.serve.agents import ServedAgent
from coa.serve.bodies import json_response
from coa.serve.service import Service


def routes(service: Service) -> list[BaseRoute]:
    started = int(time.time())

    async def listed(request: Request) -> Response:
        return json_response(
            {"object": "list", "data": [model_object(agent, started) for agent in service.agents.values()]}
        )

    async def one(request: Request) -> Response:
        return json_response(model_object(service.agent(request.path_params["name"]), started))

    return [Route("/v1/models", listed), Route("/v1/models/{name:path}", one)]


def model_object(agent: ServedAgent, created: int) -> dict[str, Any]:
    """As OpenAI's, with the profile and the tools of the agent in `coa`."""
    about = {"profile": agent.setting.profile.name, "tools": agent.tools}
    return {"id": agent.name, "object": "model", "created": created, "owned_by": "coa", "coa": about}
