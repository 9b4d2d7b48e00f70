"""Where a request goes, and what its address and headers say about the run and the agent that it belongs to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from coa.addresses import basic_auth, public

_PREFIX: Final = re.compile(r"(?:/run/([^/?]+))?(?:/agent/([^/?]+))?(/[^?]*)?(\?.*)?", re.DOTALL)
_VERSION: Final = re.compile(r"/v\d[^/]*(?=/|$)")
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}.*")
_PROTOCOLS: Final = {
    "/chat/completions": "chat", "/responses": "responses", "/messages": "messages", "/completions": "completions",
}  # fmt: skip
RUN_HEADER: Final = "x-coa-run"
AGENT_HEADER: Final = "x-coa-agent"
_LONGEST_NAME: Final = 500


def prefix(run: str | None = None, agent: str | None = None) -> str:
    """The part of an address before `/v1` that names a run and an agent."""
    named = (("run", run), ("agent", agent))
    return "".join(f"/{kind}/{quote(name, safe='')}" for kind, name in named if name is not None)


@dataclass(frozen=True, slots=True)
class Origin:
    """Which run and agent a call belongs to, as far as the caller says so."""

    run: str | None
    agent: str | None
    given_by: str | None
    """`path`, `header`, `traceparent`, or None where nothing is known."""
    trace: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class Route:
    run: str | None
    agent: str | None
    path: str
    """Without the prefix and the query."""
    query: str
    protocol: str

    def origin(self, headers: Mapping[str, str]) -> Origin:
        found = _TRACEPARENT.fullmatch(headers.get("traceparent", ""))
        trace = {"trace_id": found[1], "span_id": found[2]} if found else None
        run = self.run or headers.get(RUN_HEADER, "")[:_LONGEST_NAME] or None
        agent = self.agent or headers.get(AGENT_HEADER, "")[:_LONGEST_NAME] or None
        if self.run or self.agent:
            given_by: str | None = "path"
        elif run or agent:
            given_by = "header"
        else:
            given_by = "traceparent" if trace else None
        return Origin(run, agent, given_by, trace)


def route_of(address: str) -> Route:
    """What a request's path says; `address` is the path with its query, as sent."""
    found = _PREFIX.fullmatch(address)
    assert found is not None  # every part is optional
    run, agent, path, query = found.groups()
    path = path or "/"
    return Route(_name(run), _name(agent), path, query or "", protocol_of(path))


def _name(part: str | None) -> str | None:
    return unquote(part)[:_LONGEST_NAME] if part else None


def protocol_of(path: str) -> str:
    _, version, rest = path.rstrip("/").partition("/v1")
    return _PROTOCOLS.get(rest if version else path.rstrip("/"), "other")


class Upstream:
    """A server that requests are forwarded to.

    `http://host`, `http://host/` and `http://host/v1` are the same. Where the API of a server is below another version
    (`https://host/api/v3`, `https://host/v1beta/openai`), that takes the place of `/v1`.
    """

    def __init__(self, url: str) -> None:
        address = public(url).partition("?")[0].rstrip("/")
        self.authorization, self.secrets = basic_auth(url)
        self.name = address
        base = address.removesuffix("/v1")
        self._base = base
        self._own_version = _VERSION.search(urlsplit(base).path) is not None

    def target(self, route: Route) -> str:
        path = route.path
        if self._own_version and (path == "/v1" or path.startswith("/v1/")):
            path = path[3:]
        return f"{self._base}{path}{route.query}"
