"""The recording gateway in front of a real server: what passes, what is written, and what happens when things break."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import socket
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import openai
import pytest
from aiohttp import web

from coa.distill.gateway.config import RecordConfig
from coa.distill.gateway.stage import Gateway, record
from coa.errors import CoaError, RecordingError
from support.upstreams import ByteUpstream, always, calls, lines, recording, serving, sse, streams

REPLY = {
    "id": "r1", "object": "chat.completion", "created": 1, "model": "tiny",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Riga."}}],
    "usage": {"prompt_tokens": 30, "completion_tokens": 2, "total_tokens": 32},
}  # fmt: skip
QUESTION = [{"role": "user", "content": "What is the capital of Latvia?"}]


def ask(gateway: Gateway, body: bytes | None = None, path: str = "/v1/chat/completions", **headers: str) -> Any:
    """One request with the standard library's client; the connection's response with its raw body."""
    parts = urlsplit(gateway.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    content = json.dumps({"model": "tiny", "messages": QUESTION}).encode() if body is None else body
    try:
        connection.request("POST", path, content, {"Content-Type": "application/json", **named})
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


def until(true: Callable[[], object], seconds: float = 20.0) -> None:
    give_up = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def test_a_call_of_openais_client_is_recorded_with_its_run_and_agent(tmp_path: Path) -> None:
    with recording(always(json.dumps(REPLY)), tmp_path) as (gateway, upstream):
        client = openai.OpenAI(base_url=gateway.base_url("task 7", "planner"), api_key="sk-abcdef123456")
        reply = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Capital?"}])
        assert reply.choices[0].message.content == "Riga."
    assert upstream.received[0].path == "/v1/chat/completions"
    assert upstream.received[0].headers["authorization"] == "Bearer sk-abcdef123456"
    ((request, response),) = calls(tmp_path)
    assert (request["run"], request["agent"], request["given_by"]) == ("task 7", "planner", "path")
    assert (request["protocol"], request["path"]) == ("chat", "/v1/chat/completions")
    assert request["body"] == json.loads(upstream.received[0].body)
    assert response["body"] == REPLY and response["status"] == 200 and response["complete"] and not response["stream"]
    assert response["error"] is None and response["seconds"] > 0 and response["time"] >= request["time"]
    assert gateway.counts.calls == 1 and gateway.counts.prompt_tokens == 30 and gateway.counts.completion_tokens == 2
    (file,) = gateway.files
    assert file.name.startswith("task_7-") and file.name.endswith(".calls.jsonl")


def test_bytes_of_requests_and_responses_pass_unchanged(tmp_path: Path) -> None:
    body = b'{"model":  "tiny",\n"messages": [], "odd": 1.0e5, "text": "\\u00e4\\ud83d\\ude00"}'
    answer = b'{ "id":"x" , "usage":null }\n\n'
    with recording(always(answer, 201, X_Request_Id="r-1", Set_Cookie="a=b"), tmp_path) as (gateway, upstream):
        response, got = ask(gateway, body, "/v1/chat/completions?api-version=2", X_Own="1")
        assert (response.status, got, response.headers["x-request-id"]) == (201, answer, "r-1")
        assert response.headers["content-length"] == str(len(answer)) and response.headers["set-cookie"] == "a=b"
        assert (upstream.received[0].body, upstream.received[0].path) == (body, "/v1/chat/completions?api-version=2")
        assert upstream.received[0].headers["x-own"] == "1"
        assert "x-coa-run" not in upstream.received[0].headers
    ((request, line),) = calls(tmp_path)
    assert request["body"] == json.loads(body) and line["body"] == {"id": "x", "usage": None}


def test_a_compressed_response_is_forwarded_as_it_is_and_recorded_as_text(tmp_path: Path) -> None:
    packed = gzip.compress(json.dumps(REPLY).encode())
    with recording(always(packed, Content_Encoding="gzip"), tmp_path) as (gateway, upstream):
        response, got = ask(gateway, Accept_Encoding="gzip, br, zstd;q=0.5")
        assert got == packed and response.headers["content-encoding"] == "gzip"
        assert upstream.received[0].headers["accept-encoding"] == "gzip"
    assert calls(tmp_path)[0][1]["body"] == REPLY


def test_a_compressed_request_is_forwarded_as_it_is_and_recorded_as_text(tmp_path: Path) -> None:
    packed = zlib.compress(json.dumps({"messages": QUESTION}).encode())
    with recording(always("{}"), tmp_path) as (gateway, upstream):
        ask(gateway, packed, Content_Encoding="deflate")
        assert upstream.received[0].body == packed and upstream.received[0].headers["content-encoding"] == "deflate"
    assert calls(tmp_path)[0][0]["body"] == {"messages": QUESTION}


def chunk(**delta: Any) -> dict[str, Any]:
    return {"id": "r", "object": "chat.completion.chunk", "created": 1, "model": "tiny",
            "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}  # fmt: skip


END = {"id": "r", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def test_a_stream_passes_as_it_comes_and_is_recorded_as_one_reply(tmp_path: Path) -> None:
    pieces = sse(chunk(role="assistant", content="Ri"), chunk(content="ga."), END)
    with recording(streams(*pieces), tmp_path) as (gateway, _):
        response, got = ask(gateway)
        assert got == b"".join(pieces) and response.headers["content-type"] == "text/event-stream; charset=utf-8"
        client = openai.OpenAI(base_url=gateway.base_url(), api_key="none")
        parts = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "Capital?"}], stream=True
        )
        assert "".join(part.choices[0].delta.content or "" for part in parts) == "Riga."
    for _, line in calls(tmp_path):
        assert line["stream"] and line["complete"] and line["error"] is None
        assert line["body"]["object"] == "chat.completion"
        (choice,) = line["body"]["choices"]
        assert choice["message"] == {"role": "assistant", "content": "Riga."} and choice["finish_reason"] == "stop"


def test_an_event_reaches_the_client_before_the_next_one_is_sent(tmp_path: Path) -> None:
    seen = asyncio.Event()

    async def reply(request: web.Request, _: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(sse(chunk(content="one"), done=False)[0])
        await asyncio.wait_for(seen.wait(), 20)  # set by the client, so a proxy that buffers would hang here
        await response.write(b"".join(sse(chunk(content=" two"), END)))
        return response

    async def read(url: str) -> str:
        async with aiohttp.ClientSession() as session, session.post(url, json={"messages": []}) as response:
            first = await response.content.readany()
            return first.decode()

    with recording(reply, tmp_path) as (gateway, _):
        assert "one" in asyncio.run(read(f"{gateway.base_url()}/chat/completions"))


def test_a_server_that_breaks_off_is_seen_by_the_client_and_recorded_as_far_as_it_came(tmp_path: Path) -> None:
    broken = streams(*sse(chunk(content="Ri"), done=False), pause_s=0.05, breaks=True)
    with recording(broken, tmp_path) as (gateway, _), pytest.raises(http.client.IncompleteRead):
        ask(gateway)
    ((_, line),) = calls(tmp_path)
    assert line["stream"] and not line["complete"] and line["status"] == 200
    assert "closed the connection in the middle" in line["error"]
    assert line["body"]["choices"][0]["message"]["content"] == "Ri"


def test_a_server_that_is_not_there_gives_502_and_is_recorded(tmp_path: Path) -> None:
    with serving(ByteUpstream(always("{}"))) as url:
        pass
    with record(RecordConfig(upstream=url, port=0), tmp_path) as gateway:
        response, got = ask(gateway)
        assert response.status == 502 and "cannot be reached" in json.loads(got)["error"]["message"]
        client = openai.OpenAI(base_url=gateway.base_url(), api_key="none", max_retries=0)
        with pytest.raises(openai.InternalServerError, match="cannot be reached"):
            client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Capital?"}])
    for request, line in calls(tmp_path):
        assert request["body"]["model"] == "tiny"
        assert line["status"] is None and "cannot be reached" in line["error"] and not line["complete"]
    assert gateway.counts.failed == 2


def test_a_client_that_leaves_cancels_the_call_and_the_record_says_so(tmp_path: Path) -> None:
    async def leave(url: str) -> None:
        async with aiohttp.ClientSession() as session, session.post(url, json={"messages": QUESTION}) as response:
            await response.content.readany()
            response.close()

    endless = streams(*(sse(chunk(content="word "), done=False) * 2000), pause_s=0.02)
    with recording(endless, tmp_path) as (gateway, upstream):
        asyncio.run(leave(f"{gateway.base_url()}/chat/completions"))
        until(lambda: upstream.left and gateway.counts.calls)
    ((_, line),) = calls(tmp_path)
    assert line["error"] == "the client went away" and not line["complete"]
    assert line["body"]["choices"][0]["message"]["content"].startswith("word ")


def test_a_client_that_leaves_while_it_waits_cancels_the_call_too(tmp_path: Path) -> None:
    async def hang(request: web.Request, _: bytes) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()

    async def leave(url: str) -> None:
        timeout = aiohttp.ClientTimeout(total=0.2)
        with pytest.raises(TimeoutError):
            async with aiohttp.ClientSession(timeout=timeout) as session:
                await session.post(url, json={"messages": QUESTION})

    with recording(hang, tmp_path) as (gateway, upstream):
        asyncio.run(leave(f"{gateway.base_url()}/chat/completions"))
        until(lambda: upstream.left and gateway.counts.calls)
    ((_, line),) = calls(tmp_path)
    assert line["error"] == "the client went away" and line["status"] is None and line["body"] is None


def test_other_paths_and_methods_pass_too(tmp_path: Path) -> None:
    with recording(always('{"data": []}'), tmp_path) as (gateway, upstream):
        client = openai.OpenAI(base_url=gateway.base_url(run="r"), api_key="none")
        assert list(client.models.list()) == []
        ask(gateway, path="/generate")
    assert [(one.method, one.path) for one in upstream.received] == [("GET", "/v1/models"), ("POST", "/generate")]
    assert [request["protocol"] for request, _ in calls(tmp_path)] == ["other", "other"]
    assert gateway.counts.calls == 0


def test_a_port_that_is_taken_is_an_error_with_a_hint(tmp_path: Path) -> None:
    with recording(always("{}"), tmp_path) as (gateway, _):
        port = urlsplit(gateway.url).port
        with pytest.raises(RecordingError, match="cannot listen on") as failed:
            record(RecordConfig(upstream="http://127.0.0.1:9", port=port), tmp_path).__enter__()
        assert "--port" in str(failed.value)


def test_an_upstream_without_a_host_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CoaError, match="not the address of a server"):
        record(RecordConfig(upstream="localhost"), tmp_path)


def test_what_was_open_when_the_gateway_ends_is_recorded_as_such(tmp_path: Path) -> None:
    async def hang(request: web.Request, _: bytes) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()

    async def leave(gateway: Gateway, upstream: ByteUpstream) -> None:
        async with aiohttp.ClientSession() as session:
            asking = asyncio.ensure_future(
                session.post(f"{gateway.base_url()}/chat/completions", json={"messages": []})
            )
            while not upstream.received:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(gateway.__exit__, None, None, None)
            with pytest.raises(aiohttp.ClientError):
                await asking

    upstream = ByteUpstream(hang)
    with serving(upstream) as url:
        gateway = record(RecordConfig(upstream=url, port=0), tmp_path).__enter__()
        asyncio.run(leave(gateway, upstream))
    ((_, line),) = calls(tmp_path)
    assert line["error"] == "the gateway was stopped"
    assert [each["event"] for each in lines(tmp_path)] == ["request", "response"]


RAW = {
    "/none": b"HTTP/1.1 204 No Content\r\nX-A: 1\r\n\r\n",
    "/empty": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "/untyped": b"HTTP/1.1 299 Own Reason\r\nContent-Length: 2\r\nX-Two: a\r\nX-Two: b\r\n\r\nok",
    "/until-closed": b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nuntil the end",
    "/old": b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nold",
    "/chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: a/b\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "/moved": b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n",
}


def test_status_headers_and_body_are_those_of_the_server_whatever_it_sends(tmp_path: Path) -> None:
    def serve(listening: socket.socket) -> None:
        for _ in range(2 * len(RAW)):
            connection, _address = listening.accept()
            with connection:
                connection.sendall(RAW[connection.recv(1 << 16).split()[1].decode()])

    def seen(host: str, path: str) -> tuple[Any, ...]:
        connection = http.client.HTTPConnection(host, timeout=30)
        connection.request("GET", path)
        response = connection.getresponse()
        passing = ("date", "connection", "transfer-encoding")
        headers = sorted((name, value) for name, value in response.getheaders() if name.lower() not in passing)
        found = (response.status, response.reason, headers, response.read())
        connection.close()
        return found

    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving_thread = threading.Thread(target=serve, args=(listening,), daemon=True)
        serving_thread.start()
        direct = f"127.0.0.1:{listening.getsockname()[1]}"
        with record(RecordConfig(upstream=f"http://{direct}", port=0), tmp_path) as gateway:
            for path in RAW:
                assert seen(urlsplit(gateway.url).netloc, path) == seen(direct, path), path
        serving_thread.join(30)


TOKENS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "vllm": ({"stream": True}, {"logprobs", "return_token_ids"}),
    "sglang": ({}, {"logprobs", "return_token_ids", "return_prompt_token_ids", "return_meta_info"}),
    "somebody": ({}, set()),
}


@pytest.mark.parametrize("owner", TOKENS)
def test_token_ids_are_asked_for_as_the_server_understands_it(tmp_path: Path, owner: str) -> None:
    async def reply(request: web.Request, _: bytes) -> web.StreamResponse:
        return web.json_response({"data": [{"id": "tiny", "owned_by": owner}]})

    asked, added = TOKENS[owner]
    body = {"model": "tiny", "messages": QUESTION, **asked}
    with recording(reply, tmp_path, tokens=True) as (gateway, upstream):
        for _ in range(2):
            ask(gateway, json.dumps(body).encode(), Authorization="Bearer sk-abcdef123456")
    models, *sent = upstream.received
    assert (models.path, models.headers["authorization"]) == ("/v1/models", "Bearer sk-abcdef123456")
    assert [json.loads(one.body).keys() - body.keys() for one in sent] == [added, added]
    assert [request["body"] for request, _ in calls(tmp_path)] == [body, body]
