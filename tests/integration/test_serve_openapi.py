"""The OpenAPI document of the server: it is complete, and requests made up from it never break the server."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from starlette.routing import Route

from coa.serve import app, chat, mcp, models, openapi, page, responses
from coa.serve.config import ServeConfig
from support.served import AGENT, served

schemathesis = pytest.importorskip("schemathesis")
NOT_DESCRIBED = {"/", "/c/{conversation}", "/runs/{run}", "/v1/responses/compact"}
"""Pages for people, and what is only there to be refused with a reason."""


def test_every_endpoint_is_described() -> None:
    service: Any = cast(Any, SimpleNamespace(config=ServeConfig()))
    parts = (responses, chat, models, mcp, page)
    routes = [
        *app._upkeep(service),
        *openapi.routes(service.config),
        *(r for part in parts for r in part.routes(service)),
    ]
    found = {route.path.replace(":path", "") for route in routes if isinstance(route, Route)}
    described = openapi.document()
    assert {path for path in found if not path.startswith("/static")} - NOT_DESCRIBED == set(described["paths"])
    references = set(re.findall(r"#/components/schemas/([\w.]+)", str(described)))
    assert references <= set(described["components"]["schemas"])


def test_the_document_has_only_what_the_server_was_started_with() -> None:
    with served(config={"mcp": False, "page": False}) as server:
        paths = httpx.get(f"{server.url}/openapi.json").json()["paths"]
    assert "/v1/responses" in paths and not any(path.startswith(("/mcp", "/page")) for path in paths)


def test_no_request_that_schemathesis_makes_up_breaks_the_server() -> None:
    """Requests that fit the document, and requests that do not; the answer is as described, and never a 500."""
    with served(lambda context: "<think>Hm.</think>\n<answer>Yes.</answer>", config={"mcp": False}) as server:
        schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
        seen: set[int] = set()
        for found in schema.get_all_operations():
            operation = found.ok()
            for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
                if mode is schemathesis.GenerationMode.NEGATIVE and not operation.body:
                    continue

                @settings(max_examples=8, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
                          suppress_health_check=list(HealthCheck))  # fmt: skip
                @given(case=operation.as_strategy(generation_mode=mode))
                def send(case: Any) -> None:
                    for name in ("model", "agent"):
                        if isinstance(case.body, dict) and isinstance(case.body.get(name), str):
                            case.body[name] = AGENT  # further than "there is no such model"
                    answer = case.call(base_url=server.url, timeout=20)
                    seen.add(answer.status_code)
                    case.validate_response(
                        answer,
                        checks=[
                            schemathesis.checks.not_a_server_error,
                            schemathesis.checks.response_schema_conformance,
                            schemathesis.checks.status_code_conformance,
                        ],
                    )

                send()
    assert {200, 400, 404} <= seen
