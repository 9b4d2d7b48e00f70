"""The routes under `/v1/responses`."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from coa.serve.api_error import ApiError
from coa.serve.bodies import json_response, read_body
from coa.serve.caller import request_caller
from coa.serve.responses import stored
from coa.serve.responses.body import CreateResponse
from coa.serve.responses.output import Json
from coa.serve.responses.planning import plan
from coa.serve.responses.reply import PREFIX, Reply
from coa.serve.run import Run
from coa.serve.service import Service
from coa.serve.streams import EventStream, finished

PATH = "/v1/responses"


def routes(service: Service) -> list[BaseRoute]:
    api = _Responses(service)
    one = f"{PATH}/{{response_id}}"
    return [
        Route(PATH, api.create, methods=["POST"]),
        Route(f"{PATH}/compact", api.compact, methods=["POST"]),
        Route(one, api.read, methods=["GET"]),
        Route(one, api.delete, methods=["DELETE"]),
        Route(f"{one}/cancel", api.cancel, methods=["POST"]),
        Route(f"{one}/input_items", api.input_items, methods=["GET"]),
    ]


class _Responses:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._replies: WeakKeyDictionary[Run, Reply] = WeakKeyDictionary()

    async def create(self, request: Request) -> Response | EventStream:
        service, caller = self._service, request_caller(request)
        raw = await request.body()
        body = read_body(CreateResponse, raw)
        planned = plan(service, caller, body, orjson.loads(raw)["input"])
        reply = planned.reply
        run = await service.start(planned.request, caller, render=reply.stored)
        self._replies[run] = reply
        if body.background:
            await service.keep_early(run, reply.if_lost(run))
        named = {"x-coa-run": run.id}
        if body.stream:
            return EventStream(reply.stream(service, run), headers=named)
        if not body.background:
            await finished(request, run, service)
        return json_response(reply.response(run))

    async def read(self, request: Request) -> Response | EventStream:
        response_id = request.path_params["response_id"]
        run = self._running(request)
        if _flag(request, "stream"):
            after = _number(request, "starting_after", default=-1, least=-1)
            if run is None or not run.request.background:
                self._stored(request)
                raise ApiError(
                    400,
                    "Only a background response can be streamed again, until ten minutes after its end.",
                    code="invalid_value",
                    param="stream",
                )
            return EventStream(self._replies[run].stream(self._service, run, after))
        if run is not None and run.request.store:
            return json_response(self._replies[run].response(run))
        if run is not None:
            raise stored.missing(response_id)
        return json_response(self._stored(request).response)

    async def delete(self, request: Request) -> Response:
        caller, response_id = request_caller(request), request.path_params["response_id"]
        run = self._running(request)
        if run is not None and not run.status.over:
            await run.cancel()
        elif run is None:
            self._stored(request)
        run_id = stored.run_id_of(response_id)
        if run_id is None or not self._service.forget(run_id, caller):
            raise stored.missing(response_id)
        return json_response({"id": response_id, "object": "response.deleted", "deleted": True})

    async def cancel(self, request: Request) -> Response:
        run = self._running(request)
        if run is None:
            return json_response(self._stored(request).response)  # it is over
        await run.cancel()
        return json_response(self._replies[run].response(run))

    async def input_items(self, request: Request) -> Response:
        items = stored.input_items(self._stored(request))
        limit = _number(request, "limit", default=20, least=1, most=100)
        order, after = request.query_params.get("order", "desc"), request.query_params.get("after")
        if order not in ("asc", "desc"):
            raise ApiError(400, "`order` must be asc or desc.", code="invalid_value", param="order")
        if order == "desc":
            items.reverse()
        if after is not None:
            places = [place for place, item in enumerate(items) if item["id"] == after]
            if not places:
                raise ApiError(400, f"There is no item {after!r}.", code="item_not_found", param="after")
            items = items[places[0] + 1 :]
        shown = items[:limit]
        ends: Json = {"first_id": shown[0]["id"], "last_id": shown[-1]["id"]} if shown else {}
        return json_response({"object": "list", "data": shown, "has_more": len(items) > limit, **ends})

    async def compact(self, request: Request) -> Response:
        raise ApiError(
            501, "This server does not compact conversations; earlier turns are short.", code="not_implemented"
        )

    def _running(self, request: Request) -> Run | None:
        """The run in memory, if it is one of the caller's and of this protocol."""
        run_id = stored.run_id_of(request.path_params["response_id"])
        run = self._service.running(run_id, request_caller(request)) if run_id else None
        return run if run is not None and run in self._replies else None

    def _stored(self, request: Request) -> stored.StoredResponse:
        response_id = request.path_params["response_id"]
        found = stored.find(self._service, request_caller(request), stored.run_id_of(response_id))
        if found is None:
            raise stored.missing(response_id)
        return found


def _flag(request: Request, name: str) -> bool:
    value = request.query_params.get(name, "false")
    if value not in ("true", "false"):
        raise ApiError(400, f"`{name}` must be true or false.", code="invalid_value", param=name)
    return value == "true"


def _number(request: Request, name: str, *, default: int, least: int, most: int = 1 << 31) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        number = int(text[:20])
    except ValueError:
        number = least - 1
    if not least <= number <= most:
        message = f"`{name}` must be a whole number from {max(least, 0)} to {most}."
        raise ApiError(400, message, code="invalid_value", param=name)
    return number


__all__ = ["PATH", "PREFIX", "routes"]
