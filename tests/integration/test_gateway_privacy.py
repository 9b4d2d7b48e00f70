"""What may never be in a recording: keys, wherever they travel, and what the user wants redacted."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from coa.distill.gateway.config import RecordConfig
from coa.distill.gateway.stage import Gateway, record
from coa.errors import ConfigError
from support.upstreams import ByteUpstream, always, calls, recording, serving, sse, streams

KEYS = {
    "Authorization": "Bearer sk-secret-bearer", "x-api-key": "secret-anthropic", "api-key": "secret-azure",
    "x-goog-api-key": "secret-google", "Cookie": "session=secret-cookie", "Proxy-Authorization": "Basic secret-proxy",
    "X-Auth-Token": "secret-token", "Ocp-Apim-Subscription-Key": "secret-apim", "X-Custom": "secret-custom-header",
}  # fmt: skip


def post(gateway: Gateway, body: object, path: str = "/v1/chat/completions", **headers: str) -> bytes:
    parts = urlsplit(gateway.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **headers})
        return connection.getresponse().read()
    finally:
        connection.close()


def recorded(folder: Path) -> str:
    return "".join(file.read_text() for file in sorted(folder.rglob("*")) if file.is_file())


def test_no_key_cookie_or_unknown_header_is_written_and_all_of_them_are_forwarded(tmp_path: Path) -> None:
    async def echo(request: web.Request, body: bytes) -> web.StreamResponse:
        said = f"wrong key: {request.headers['Authorization']}, {request.headers['x-api-key']}, {request.raw_path}"
        return web.json_response({"error": {"message": said}}, status=401, headers={"Set-Cookie": "id=secret-set"})

    with recording(echo, tmp_path) as (gateway, upstream):
        query = "?key=secret-query&api-version=1&access_token=secret-access"
        answer = post(gateway, {"messages": [], "api_key": "secret-body"}, f"/v1/chat/completions{query}", **KEYS)
        assert b"secret-anthropic" in answer  # the client gets what the server said
        sent = upstream.received[0]
        assert sent.path.endswith(query) and b"secret-body" in sent.body
        forwarded = {name.lower(): value for name, value in KEYS.items() if not name.startswith("Proxy-")}
        assert forwarded.items() <= sent.headers.items()
    ((request, response),) = calls(tmp_path)
    assert "secret" not in recorded(tmp_path), recorded(tmp_path)
    assert request["path"] == "/v1/chat/completions" and request["headers"] == {"content-type": "application/json"}
    assert request["body"] == {"messages": [], "api_key": "[key]"}
    assert response["body"]["error"]["message"].startswith("wrong key: [key], [key], ")


def test_keys_for_hosted_tools_are_not_written_but_schemas_and_texts_are(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"password": {"type": "string"}, "token": {"type": "string"}}}
    body = {
        "input": "my password is tulip", "prompt_cache_key": "team-1",
        "tools": [
            {"type": "mcp", "server_url": "https://x", "authorization": "secret-1", "headers": {"X-Own": "secret-2"}},
            {"type": "function", "name": "login", "parameters": schema},
        ],
        "mcp_servers": [{"type": "url", "url": "https://y", "authorization_token": "secret-3"}],
    }  # fmt: skip
    with recording(always("{}"), tmp_path) as (gateway, upstream):
        post(gateway, body, "/v1/responses")
        assert json.loads(upstream.received[0].body) == body
    assert "secret" not in recorded(tmp_path)
    kept = calls(tmp_path)[0][0]["body"]
    assert kept["tools"][0] == {**body["tools"][0], "authorization": "[key]", "headers": {"X-Own": "[key]"}}  # type: ignore[dict-item]
    assert kept["tools"][1] == body["tools"][1] and kept["input"] == body["input"]
    assert kept["mcp_servers"][0]["authorization_token"] == "[key]" and kept["prompt_cache_key"] == "team-1"


def test_keys_that_a_body_hands_on_to_other_servers_are_not_written(tmp_path: Path) -> None:
    search = {"endpoint": "https://z", "authentication": {"type": "api_key", "key": "secret-1"}}
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "extra_headers": {"Authorization": "Bearer secret-2"},
        "data_sources": [{"type": "azure_search", "parameters": search}],
        "provider": {"api_key": "secret-3", "order": ["x"]},
    }
    with recording(always("{}"), tmp_path) as (gateway, upstream):
        post(gateway, body)
        assert json.loads(upstream.received[0].body) == body
    assert "secret" not in recorded(tmp_path)
    kept = calls(tmp_path)[0][0]["body"]
    assert kept["messages"] == body["messages"] and kept["provider"] == {"api_key": "[key]", "order": ["x"]}


def test_the_password_of_the_upstream_is_sent_and_written_nowhere(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    upstream = ByteUpstream(always("{}"))
    with serving(upstream) as url:
        secret = url.replace("http://", "http://user:tulip-42@")
        with record(RecordConfig(upstream=secret, port=0), tmp_path) as gateway:
            post(gateway, {"messages": []}, Authorization="Bearer none")
            assert upstream.received[0].headers["authorization"] == "Basic dXNlcjp0dWxpcC00Mg=="
            assert "tulip" not in gateway.upstream
    with record(RecordConfig(upstream=secret, port=0), tmp_path) as gateway:
        answer = post(gateway, {"messages": []})  # the server is gone
    assert b"cannot be reached" in answer and b"tulip" not in answer
    assert "tulip" not in recorded(tmp_path) and "dXNlcjp0dWxpcC00Mg" not in recorded(tmp_path)
    assert "tulip" not in "".join(capfd.readouterr())


def test_what_matches_a_pattern_is_redacted_in_the_record_alone(tmp_path: Path) -> None:
    chunks = [{"choices": [{"index": 0, "delta": {"content": text}, "token_ids": [7],
                            "logprobs": {"content": [{"token": text, "logprob": -1.0}]}}], "prompt_token_ids": [5]}
              for text in ("write to ann@exa", "mple.org", " now")]  # fmt: skip
    pieces = sse(*chunks)
    question = {"messages": [{"role": "user", "content": "Mail bob@example.org, card 1234-5678"}]}
    patterns = (r"[\w.]+@[\w.]+", r"\d{4}-\d{4}")
    with recording(streams(*pieces), tmp_path, redact=patterns) as (gateway, upstream):
        assert post(gateway, question) == b"".join(pieces)
        assert json.loads(upstream.received[0].body) == question
    ((request, response),) = calls(tmp_path)
    assert request["body"]["messages"][0]["content"] == "Mail [redacted], card [redacted]"
    (choice,) = response["body"]["choices"]
    assert choice["message"]["content"] == "write to [redacted] now"
    # Ids and log probabilities would spell it out.
    assert "token_ids" not in choice and "logprobs" not in choice and "prompt_token_ids" not in response["body"]


def test_token_ids_stay_where_no_pattern_matches(tmp_path: Path) -> None:
    reply = {"choices": [{"index": 0, "message": {"content": "x"}, "token_ids": [7]}], "prompt_token_ids": [5]}
    with recording(always(json.dumps(reply)), tmp_path, redact=("zzz",)) as (gateway, _):
        post(gateway, {"messages": []})
    assert calls(tmp_path)[0][1]["body"] == reply


@pytest.mark.parametrize("headers", [{"Origin": "https://example.org"}, {"Host": "example.org:8790"}, {"Host": ""}])
def test_web_pages_cannot_use_the_gateway(tmp_path: Path, headers: dict[str, str]) -> None:
    with recording(always("{}"), tmp_path) as (gateway, upstream):
        assert b"answers no web page" in post(gateway, {"messages": []}, **headers)
        assert upstream.received == []
        port = urlsplit(gateway.url).port
        assert post(gateway, {"messages": []}, Host=f"localhost:{port}") == b"{}"


def test_a_pattern_that_cannot_be_read_is_an_error_with_its_place() -> None:
    from coa.config import load_config

    with pytest.raises(ConfigError, match=r"redact: '\(' is not a regular expression"):
        load_config(RecordConfig, given={"upstream": "http://127.0.0.1:9", "redact": ("(",)})
