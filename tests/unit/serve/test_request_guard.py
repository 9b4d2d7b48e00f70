"""What a request must pass before a protocol sees it."""

import http.client
import json
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from coa.errors import ConfigError
from coa.serve.config import ServeConfig
from coa.serve.keys import Keys
from coa.serve.server import refuse_public_without_keys
from support.served import ServedAgent, served

KEY = "a-key-of-a-tester-0123456789"


def ask(
    server: ServedAgent, path: str = "/ready", method: str = "GET", body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, object], http.client.HTTPMessage]:
    parts = urlsplit(server.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=20)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text.startswith(b"{") else {}, answer.headers
    finally:
        connection.close()


def code(found: dict[str, object]) -> object:
    error = found["error"]
    assert isinstance(error, dict) and set(error) == {"type", "code", "message", "param"}
    return error["code"]


@pytest.fixture(scope="module")
def server() -> Iterator[ServedAgent]:
    config = {"origins": ("https://chat.example",), "hosts": ("agent.example",), "max_body_bytes": 2000}
    with served(config=config) as found:
        yield found


@pytest.mark.parametrize("host", ["localhost", "localhost:8080", "127.0.0.1:1", "[::1]:8080", "agent.example:80"])
def test_hosts_that_are_known_are_served(server: ServedAgent, host: str) -> None:
    assert ask(server, Host=host)[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "10.0.0.1", "127.0.0.1.evil.example"])
def test_a_name_that_only_resolves_to_this_machine_is_refused(server: ServedAgent, host: str) -> None:
    status, found, _ = ask(server, Host=host)
    assert (status, code(found)) == (421, "unknown_host")


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:1", "file://", "http://["])
def test_pages_of_other_origins_may_not_call(server: ServedAgent, origin: str) -> None:
    status, found, headers = ask(server, Origin=origin, Host="localhost:8080")
    assert (status, code(found)) == (403, "unknown_origin")
    assert "access-control-allow-origin" not in headers


def test_its_own_page_and_listed_origins_may_call(server: ServedAgent) -> None:
    assert ask(server, Origin="http://localhost:8080", Host="localhost:8080")[0] == 200
    status, _, headers = ask(server, Origin="https://chat.example")
    assert status == 200 and headers["access-control-allow-origin"] == "https://chat.example"
    status, _, headers = ask(
        server, method="OPTIONS", Origin="https://chat.example", Access_Control_Request_Method="POST"
    )
    assert status == 204 and "authorization" in headers["access-control-allow-headers"]


def test_wrong_paths_and_methods_are_errors_in_the_standard_shape(server: ServedAgent) -> None:
    status, found, _ = ask(server, "/v1/nothing")
    assert (status, code(found)) == (404, "not_found")
    status, found, _ = ask(server, "/health", "DELETE")
    assert (status, code(found)) == (405, "method_not_allowed")


def test_a_body_that_is_too_large_is_refused_by_its_length(server: ServedAgent) -> None:
    status, found, headers = ask(server, "/v1/responses", "POST", b"x" * 3000)
    assert (status, code(found)) == (413, "request_too_large") and headers["connection"] == "close"


def test_without_the_right_key_only_health_and_the_empty_page_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COA_SERVE_KEYS", f"tester:{KEY}")
    with served() as found:
        assert ask(found, "/health")[0] == ask(found, "/ready")[0] == 200
        for path in ("/metrics", "/v1/models", "/v1/responses/x", "/nothing"):
            assert ask(found, path)[0] == 401, path
        status, answer, headers = ask(found, "/metrics", Authorization="Bearer wrong")
        assert (status, code(answer)) == (401, "invalid_api_key") and headers["www-authenticate"] == "Bearer"
        assert ask(found, "/metrics", Authorization=f"Bearer {KEY}")[0] == 200


def test_pages_may_be_framed_by_listed_origins_alone() -> None:
    with served(config={"framed_by": ("https://spaces.example",)}) as framed:
        policy = ask(framed, "/")[2]["content-security-policy"]
    assert "frame-ancestors https://spaces.example;" in policy and "default-src 'none'" in policy


def test_an_agent_is_public_only_if_the_settings_say_so() -> None:
    none = Keys.of(ServeConfig())
    for host in ("127.0.0.1", "::1", "localhost"):
        refuse_public_without_keys(ServeConfig(host=host), none)
    with pytest.raises(ConfigError, match="without a key would let anybody use this agent"):
        refuse_public_without_keys(ServeConfig(host="0.0.0.0"), none)
    refuse_public_without_keys(ServeConfig(host="0.0.0.0", public=True), none)
