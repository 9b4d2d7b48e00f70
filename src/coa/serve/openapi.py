"""`GET /openapi.json`: every endpoint of this server as an OpenAPI 3.1 document.

Requests are described by the models that read them. The document has the paths that the server was started with: the
API, `/mcp` and the page can each be left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

import orjson
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from coa.serve.chat_request import ChatBody
from coa.serve.config import ServeConfig
from coa.serve.page import StartBody
from coa.serve.responses.body import CreateResponse
from coa.version import __version__

Json = dict[str, Any]
PATH: Final = "/openapi.json"


class Endpoint(NamedTuple):
    method: str
    path: str
    summary: str
    body: type[BaseModel] | None = None
    answer: str = "Object"
    """Name of the schema of a successful answer; `Text` and `Nothing` are not JSON."""
    status: int = 200
    stream: bool = False
    """Whether the answer may be a stream of server-sent events."""
    query: tuple[tuple[str, Json], ...] = ()


_STREAM: Final = ("stream", {"type": "boolean"})
_UPKEEP: Final = (
    Endpoint("get", "/health", "Whether the server answers at all."),
    Endpoint("get", "/ready", "Whether the server takes requests, and for which agents."),
    Endpoint("get", "/metrics", "Counters and histograms for Prometheus.", answer="Text"),
    Endpoint("get", PATH, "This document."),
)
_API: Final = (
    Endpoint("post", "/v1/responses", "Ask an agent (Open Responses).", CreateResponse, "Response", stream=True),
    Endpoint(
        "get", "/v1/responses/{response_id}", "A stored or running response.", answer="Response", stream=True,
        query=(_STREAM, ("starting_after", {"type": "integer", "minimum": 0})),
    ),
    Endpoint("delete", "/v1/responses/{response_id}", "Delete a response; one that is running is cancelled first."),
    Endpoint("post", "/v1/responses/{response_id}/cancel", "Cancel a running response.", answer="Response"),
    Endpoint(
        "get", "/v1/responses/{response_id}/input_items", "The input of a response.", answer="List",
        query=(
            ("limit", {"type": "integer", "minimum": 1, "maximum": 100}),
            ("order", {"enum": ["asc", "desc"]}), ("after", {"type": "string"}),
        ),
    ),
    Endpoint("post", "/v1/chat/completions", "Ask an agent (Chat Completions).", ChatBody, "Completion", stream=True),
    Endpoint("get", "/v1/models", "The agents of this server.", answer="List"),
    Endpoint("get", "/v1/models/{name}", "One agent."),
)  # fmt: skip
_MCP: Final = (Endpoint("post", "/mcp", "Model Context Protocol over streamable HTTP: one JSON-RPC message."),)
_PAGE: Final = (
    Endpoint("get", "/page/agents", "What the web page offers."),
    Endpoint("post", "/page/runs", "Ask from the web page.", StartBody, status=201),
    Endpoint("get", "/page/runs/{run}", "One run with its events."),
    Endpoint(
        "get", "/page/runs/{run}/events", "The events of a run that is in progress.", answer="Text", stream=True,
        query=(("start", {"type": "integer", "minimum": 0}),),
    ),
    Endpoint("post", "/page/runs/{run}/cancel", "Stop a run.", answer="Nothing", status=204),
    Endpoint("get", "/page/conversations", "The conversations of the caller."),
    Endpoint("get", "/page/conversations/{conversation}", "The runs of a conversation."),
    Endpoint("delete", "/page/conversations/{conversation}", "Delete a conversation.", answer="Nothing", status=204),
)  # fmt: skip

_TEXT: Final = {"type": "string"}
_SCHEMAS: Final[Mapping[str, Json]] = {
    "Object": {"type": "object"},
    "Error": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["type", "code", "message", "param"],
                "properties": {
                    "type": _TEXT, "message": _TEXT,
                    "code": {"type": ["string", "null"]}, "param": {"type": ["string", "null"]},
                },
            }
        },
    },
    "List": {
        "type": "object",
        "required": ["object", "data"],
        "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": {"type": "object"}}},
    },
    "Response": {
        "type": "object",
        "description": "The response object of Open Responses, with the reasons and costs of the run in `coa`.",
        "required": ["id", "object", "created_at", "status", "model", "output", "usage", "error"],
        "properties": {
            "id": _TEXT, "object": {"const": "response"}, "created_at": {"type": "integer"}, "model": _TEXT,
            "status": {"enum": ["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]},
            "output": {"type": "array", "items": {"type": "object", "required": ["type", "id"]}},
            "usage": {"type": ["object", "null"]}, "error": {"type": ["object", "null"]},
        },
    },
    "Completion": {
        "type": "object",
        "required": ["id", "object", "created", "model", "choices"],
        "properties": {"id": _TEXT, "object": {"const": "chat.completion"}, "choices": {"type": "array"}},
    },
}  # fmt: skip


def routes(config: ServeConfig) -> list[BaseRoute]:
    async def shown(request: Request) -> Response:
        return Response(_encoded(config.api, config.mcp, config.page), media_type="application/json")

    return [Route(PATH, shown)]


def document(*, api: bool = True, mcp: bool = True, page: bool = True) -> Json:
    """The whole document for a server with these parts."""
    endpoints = [*_UPKEEP, *(_API if api else ()), *(_MCP if mcp else ()), *(_PAGE if page else ())]
    schemas: Json = dict(_SCHEMAS)
    paths: dict[str, Json] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method] = _operation(endpoint)
        if endpoint.body is not None:
            schemas |= _models(endpoint.body)
    return {
        "openapi": "3.1.0",
        "info": {"title": "coa", "description": "Agents behind an API.", "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"key": []}],
    }


@cache
def _encoded(api: bool, mcp: bool, page: bool) -> bytes:
    return orjson.dumps(document(api=api, mcp=mcp, page=page))


def _operation(endpoint: Endpoint) -> Json:
    wrong = {"description": "What was wrong with the request, or why it cannot be served now."}
    wrong |= {"content": {"application/json": {"schema": _ref("Error")}}}  # type: ignore[dict-item]
    found: Json = {
        "summary": endpoint.summary,
        "responses": {str(endpoint.status): _answer(endpoint), "4XX": wrong, "5XX": wrong},
    }
    if parameters := [*_in_path(endpoint.path), *({"in": "query", "name": n, "schema": s} for n, s in endpoint.query)]:
        found["parameters"] = parameters
    if endpoint.body is not None or endpoint.path == "/mcp":
        schema = _ref(_name(endpoint.body)) if endpoint.body is not None else {"type": "object"}
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return found


def _answer(endpoint: Endpoint) -> Json:
    content: Json = {}
    if endpoint.answer == "Text":
        content["text/plain"] = {"schema": _TEXT}
    elif endpoint.answer != "Nothing":
        content["application/json"] = {"schema": _ref(endpoint.answer)}
    if endpoint.stream or endpoint.path == "/mcp":
        content["text/event-stream"] = {"schema": _TEXT}
    return {"description": "Done.", **({"content": content} if content else {})}


def _in_path(path: str) -> Iterable[Json]:
    for part in path.split("/"):
        if part.startswith("{"):
            yield {"in": "path", "name": part[1:-1], "required": True, "schema": {"type": "string", "minLength": 1}}


def _models(model: type[BaseModel]) -> Json:
    """Its JSON schema, and those of the models that it contains, which are named after it: others have parts of the
    same names."""
    name = _name(model)
    schema = model.model_json_schema(ref_template=f"#/components/schemas/{name}.{{model}}")
    parts = schema.pop("$defs", {})
    return {name: schema, **{f"{name}.{part}": definition for part, definition in parts.items()}}


def _name(model: type[BaseModel]) -> str:
    return model.__name__


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}
