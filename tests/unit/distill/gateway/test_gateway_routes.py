"""What an address says: the run, the agent, the protocol, and where the request goes."""

from __future__ import annotations

import pytest

from coa.distill.gateway.routes import Upstream, prefix, route_of


@pytest.mark.parametrize(
    ("address", "run", "agent", "path", "query", "protocol"),
    [
        ("/v1/chat/completions", None, None, "/v1/chat/completions", "", "chat"),
        ("/run/a%2Fb/agent/pl%20an/v1/responses?x=1", "a/b", "pl an", "/v1/responses", "?x=1", "responses"),
        ("/run/7/v1/messages", "7", None, "/v1/messages", "", "messages"),
        ("/agent/critic/v1/completions/", None, "critic", "/v1/completions/", "", "completions"),
        ("/chat/completions", None, None, "/chat/completions", "", "chat"),
        ("/v1/messages/count_tokens", None, None, "/v1/messages/count_tokens", "", "other"),
        ("/v1/responses/resp_1", None, None, "/v1/responses/resp_1", "", "other"),
        ("/v1/models?limit=2", None, None, "/v1/models", "?limit=2", "other"),
        ("/runs/7/v1/models", None, None, "/runs/7/v1/models", "", "other"),
        ("/run/7", "7", None, "/", "", "other"),
        ("/", None, None, "/", "", "other"),
    ],
)
def test_a_path_says_what_it_is_about(
    address: str, run: str | None, agent: str | None, path: str, query: str, protocol: str
) -> None:
    route = route_of(address)
    assert (route.run, route.agent, route.path, route.query, route.protocol) == (run, agent, path, query, protocol)


def test_names_survive_the_way_through_an_address() -> None:
    for name in ("a/b", "ä b", "50%", "?#", "..", "x" * 60):
        route = route_of(f"{prefix(name, name)}/v1/models")
        assert (route.run, route.agent, route.path) == (name, name, "/v1/models")


@pytest.mark.parametrize(
    ("upstream", "address", "target"),
    [
        ("http://h:1", "/v1/chat/completions?a=%2F", "http://h:1/v1/chat/completions?a=%2F"),
        ("http://h:1/", "/v1/models", "http://h:1/v1/models"),
        ("http://h:1/v1", "/v1/models", "http://h:1/v1/models"),
        ("http://h:1/v1/", "/v1/models", "http://h:1/v1/models"),
        ("https://h/openai/v1", "/v1/models", "https://h/openai/v1/models"),
        ("https://h/api", "/v1/models", "https://h/api/v1/models"),
        ("https://h/api/v3", "/v1/models", "https://h/api/v3/models"),
        ("https://h/v1beta/openai/", "/run/1/v1/chat/completions", "https://h/v1beta/openai/chat/completions"),
        ("http://h:1/v1", "/props", "http://h:1/props"),
        ("http://user:secret@h:1/v1", "/v1/models", "http://h:1/v1/models"),
    ],
)
def test_an_upstream_may_be_written_with_or_without_its_version(upstream: str, address: str, target: str) -> None:
    assert Upstream(upstream).target(route_of(address)) == target


def test_a_password_in_the_upstream_becomes_a_header() -> None:
    upstream = Upstream("http://user:secret@h:1/v1")
    assert upstream.authorization == "Basic dXNlcjpzZWNyZXQ=" and upstream.name == "http://h:1/v1"
    assert "secret" in upstream.secrets


def test_the_path_goes_before_headers_and_headers_before_the_trace() -> None:
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    parts = {"trace_id": "0af7651916cd43dd8448eb211c80319c", "span_id": "b7ad6b7169203331"}
    named = {"x-coa-run": "r", "x-coa-agent": "a"}
    assert route_of("/v1/x").origin({}).given_by is None
    found = route_of("/v1/x").origin(trace)
    assert (found.run, found.agent, found.given_by, found.trace) == (None, None, "traceparent", parts)
    found = route_of("/v1/x").origin(trace | named)
    assert (found.run, found.agent, found.given_by, found.trace) == ("r", "a", "header", parts)
    found = route_of("/run/p/v1/x").origin(named)
    assert (found.run, found.agent, found.given_by, found.trace) == ("p", "a", "path", None)
    assert route_of("/v1/x").origin({"traceparent": "00-zz-1-01"}).given_by is None
