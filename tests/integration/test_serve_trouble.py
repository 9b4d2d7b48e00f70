"""Bad requests, clients that go away, models that die, and a server that is stopped or killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from coa.choices import Mode
from coa.errors import ModelError
from coa.models.base import Context
from coa.runtime import RunConfig
from coa.trajectory import Stop, Trajectory, read
from support.serve_load import (
    ASK,
    BusyModel,
    ServeCommand,
    begin_stream,
    connect,
    descendants,
    exchange,
    head,
    nothing_left,
    post,
    read_answer,
    within,
)
from support.served import AGENT, ANSWER, SEARCH, ServedAgent, served
from support.servers import FakeServer, drop, in_thread

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"


def searches_then_answers(context: Context) -> str:
    return ANSWER if "<observation>" in context.text else SEARCH


@pytest.fixture(scope="module")
def agent() -> Iterator[ServedAgent]:
    limits = {"max_body_bytes": 4096, "body_timeout_s": 0.4, "header_timeout_s": 0.4}
    with served(searches_then_answers, config=limits) as server:
        yield server


# ---- requests that cannot be served

DEEP = b"[" * 3000 + b"]" * 3000
BAD: list[tuple[bytes, int, str | None]] = [
    (post(b""), 400, "invalid_json"),
    (post(b"{"), 400, "invalid_json"),
    (post(b"\xff\xfe\x00"), 400, "invalid_json"),
    (post(DEEP[:4000]), 400, "invalid_json"),
    (post(b'{"model": "agent", "messages": [{"role": "user", "content": "\\ud800"}]}'), 400, "invalid_json"),
    (post([]), 400, "invalid_json"),
    (post({}), 400, "missing_required_parameter"),
    (post({**ASK, "messages": 1}), 400, "invalid_value"),
    (post({**ASK, "messages": [None]}), 400, "invalid_value"),
    (post({**ASK, "model": 1}), 400, "invalid_value"),
    (post({**ASK, "temperature": "hot"}), 400, "invalid_value"),
    (post({**ASK, "temperature": 1e400}), 400, "invalid_json"),
    (post({**ASK, "max_tokens": -1}), 400, "invalid_value"),
    (post({**ASK, "max_tokens": 10**30}), 400, None),
    (post({**ASK, "surprise": 1}), 400, "unknown_parameter"),
    (post({**ASK, "n": 3}), 400, "unsupported_parameter"),
    (post({**ASK, "model": "gpt-5"}), 404, "model_not_found"),
    (post({**ASK, "tools": [{"type": "function", "function": {"name": "a b"}}]}), 400, "invalid_value"),
    (
        post({**ASK, "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]}),
        400,
        None,
    ),
    (post(ASK, "/v1/nothing"), 404, "not_found"),
    (head(method="GET"), 405, "method_not_allowed"),
    (head(method="DELETE", path="/v1/models"), 405, "method_not_allowed"),
    (head("/v1/models", method="GET", host="evil.example"), 421, "unknown_host"),
    (head("/v1/models", "Origin: https://evil.example", method="GET"), 403, "unknown_origin"),
    (head(CHAT, "Content-Length: 99999999"), 413, "request_too_large"),
]


@pytest.mark.parametrize(("request_bytes", "status", "code"), BAD, ids=range(len(BAD)))
def test_a_bad_request_gets_its_status_and_the_standard_error(
    agent: ServedAgent, request_bytes: bytes, status: int, code: str | None
) -> None:
    answer = exchange(agent.url, request_bytes)
    assert answer.status == status
    error = answer.error
    assert code is None or error["code"] == code


def test_a_body_that_turns_out_too_large_is_refused(agent: ServedAgent) -> None:
    with nothing_left(agent), connect(agent.url) as link:
        link.sendall(head(CHAT, "Transfer-Encoding: chunked"))
        piece = b"1000\r\n" + b" " * 4096 + b"\r\n"
        link.sendall(piece)
        link.sendall(piece)
        answer = read_answer(link)
        assert (answer.status, answer.error["code"]) == (413, "request_too_large")


def test_a_body_that_does_not_come_is_not_waited_for(agent: ServedAgent) -> None:
    with nothing_left(agent), connect(agent.url) as link:
        link.sendall(head(CHAT, "Content-Length: 100") + b'{"model"')
        answer = read_answer(link)
        assert (answer.status, answer.error["code"]) == (408, "request_timeout")
        assert link.recv(10) == b"", "the connection is closed"


@pytest.mark.parametrize("sent", [b"", b"POST /v1/chat/comp", b"POST / HTTP/1.1\r\nHost: localhost\r\nX: "])
def test_headers_that_do_not_come_are_not_waited_for(agent: ServedAgent, sent: bytes) -> None:
    with nothing_left(agent), connect(agent.url) as link:
        link.sendall(sent)
        with suppress(ConnectionResetError):
            assert link.recv(10) == b""


def test_what_is_not_http_is_refused(agent: ServedAgent) -> None:
    with nothing_left(agent):
        answer = exchange(agent.url, b"\x16\x03\x01\x02\x00 hello\r\n\r\n")
    assert (answer.status, answer.error["code"]) == (400, "invalid_http")


def test_headers_without_an_end_are_refused(agent: ServedAgent) -> None:
    with nothing_left(agent), connect(agent.url) as link:
        link.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX: ")
        with suppress(ConnectionError):  # it is closed while we still send
            for _ in range(64):
                link.sendall(b"y" * 16384)
                time.sleep(0.001)
        with suppress(ConnectionResetError):
            assert read_answer(link).status == 431


def test_a_client_that_goes_away_while_it_sends_is_no_error_of_the_server(
    agent: ServedAgent, caplog: pytest.LogCaptureFixture
) -> None:
    with nothing_left(agent), connect(agent.url) as link:
        link.sendall(head(CHAT, "Content-Length: 100") + b'{"model"')
        time.sleep(0.1)
    assert not [record for record in caplog.records if record.exc_info]


def test_half_open_connections_do_not_keep_others_out(agent: ServedAgent) -> None:
    with nothing_left(agent):
        links = [connect(agent.url) for _ in range(2000)]
        try:
            for link in links[::2]:
                link.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: loc")
            assert exchange(agent.url, post(ASK)).status == 200
        finally:
            for link in links:
                link.close()


def test_connections_beyond_the_limit_are_closed_at_once() -> None:
    with served(searches_then_answers, config={"max_connections": 8}) as server:
        links = [connect(server.url) for _ in range(8)]
        with connect(server.url) as surplus, suppress(ConnectionResetError):
            assert surplus.recv(1) == b""
        for link in links:
            link.close()
        assert within(2, lambda: _status(server.url) == 200)


def _status(url: str) -> int:
    try:
        return exchange(url, head("/health", method="GET")).status
    except OSError:
        return 0


# ---- clients that go away


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize(("path", "body"), [(CHAT, ASK), (RESPONSES, {"model": AGENT, "input": "Which tower?"})])
def test_a_client_that_goes_away_takes_its_run_with_it_and_frees_its_place(
    path: str, body: dict[str, Any], streamed: bool
) -> None:
    model = BusyModel()
    with served(model=model, config={"max_runs": 1, "max_queue": 0}) as server:
        with nothing_left(server):
            if streamed:
                link = begin_stream(server.url, body, path)
            else:
                link = connect(server.url)
                link.sendall(post(body, path))
            assert within(2, lambda: model.writing == 1)
            busy = exchange(server.url, post(ASK))
            assert (busy.status, busy.error["code"]) == (429, "server_busy") and int(busy.headers["retry-after"]) >= 1
            link.close()
            left = time.monotonic()
            assert within(1, lambda: model.writing == 0 and _active(server) == 0), time.monotonic() - left
        model.released = True
        assert exchange(server.url, post(ASK)).status == 200
        kept = _kept(server.out, 2)
    assert [run.stop for run in kept] == [Stop.INTERRUPTED, Stop.ANSWERED]
    assert kept[0].steps[0].text == "I wait", "what the model had written is kept"


def test_a_client_that_goes_away_while_it_waits_for_a_place_is_forgotten() -> None:
    model = BusyModel()
    with served(model=model, config={"max_runs": 1}) as server, nothing_left(server):
        first = begin_stream(server.url)
        waiting = connect(server.url)
        waiting.sendall(post({**ASK, "stream": True}))
        assert within(2, lambda: _active(server) == 2)
        waiting.close()
        assert within(1, lambda: _active(server) == 1)
        first.close()
        assert within(1, lambda: _active(server) == 0)
    assert model.begun == 1


@pytest.mark.parametrize("streamed", [True, False])
def test_a_run_that_outlasts_the_longest_stream_ends_with_an_error(streamed: bool) -> None:
    model = BusyModel()
    with served(model=model, config={"stream_timeout_s": 0.6, "heartbeat_s": 0.1}) as server, nothing_left(server):
        answer = exchange(server.url, post({**ASK, "stream": streamed}))
        if streamed:
            assert b": keep-alive\n\n" in answer.body, "silence is filled"
            error = json.loads(answer.body.decode().split("data: ")[-2])["error"]
        else:
            assert answer.status == 504
            error = answer.error
        assert error["code"] == "timeout" and model.cancelled == 1


def test_a_client_that_does_not_read_holds_up_nobody() -> None:
    long = "<answer>" + "word " * 200_000 + "</answer>"
    config = {"max_runs": 1, "max_queue": 0}
    with served(lambda context: long, config=config) as server, connect(server.url) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.sendall(post({**ASK, "stream": True}))
        assert within(5, lambda: server.out.exists() and _lines(server.out) == 1)
        assert within(2, lambda: _active(server) == 0), "its run is over, and its place is free"
        assert exchange(server.url, post(ASK)).status == 200


def _lines(out: Path) -> int:
    return sum(file.read_bytes().count(b"\n") for file in (out.glob("*.jsonl") if out.is_dir() else [out]))


def _active(server: ServedAgent) -> int:
    assert server.server.service is not None
    return server.server.service.active


def _kept(out: Path, count: int) -> list[Trajectory]:
    assert within(2, lambda: _lines(out) == count)
    return list(read(next(out.glob("*.jsonl")) if out.is_dir() else out))


def test_a_program_in_the_sandbox_dies_with_the_client_that_asked_for_it() -> None:
    program = "<think>I compute.</think>\n<code>\n```py\nwhile True: pass\n```\n</code>"
    with served(lambda context: program) as server:
        link = begin_stream(server.url)
        assert within(10, lambda: len(_spinning(os.getpid())) > 0)
        link.close()
        assert within(3, lambda: not _spinning(os.getpid()) and _active(server) == 0)


def _spinning(pid: int) -> list[int]:
    """Processes below this one that use the processor all the time."""

    def ticks(one: int) -> int:
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            return 0
        return int(fields[11])

    before = {one: ticks(one) for one in descendants(pid)}
    time.sleep(0.15)
    return [one for one, then in before.items() if ticks(one) - then >= 3]


# ---- many at once


def test_parallel_streams_get_their_own_answers_and_leave_nothing_behind() -> None:
    def script(context: Context) -> str:
        number = context.messages[-1].content.rsplit(" ", 1)[-1]
        return f"<think>I count to {number}.</think>\n<answer>It is {number}.</answer>"

    async def ask(session: aiohttp.ClientSession, url: str, number: int) -> str:
        messages = [{"role": "user", "content": f"What is {number}"}]
        async with session.post(url + CHAT, json={"model": AGENT, "messages": messages, "stream": True}) as response:
            assert response.status == 200
            text = (await response.read()).decode()
        events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        assert text.endswith("data: [DONE]\n\n")
        return "".join(event["choices"][0]["delta"].get("content", "") for event in events)

    async def all_of(url: str) -> list[str]:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            return await asyncio.gather(*(ask(session, url, number) for number in range(200)))

    with served(script, config={"max_runs": 32}) as server:
        exchange(server.url, post(ASK))
        with nothing_left(server):
            assert asyncio.run(all_of(server.url)) == [f"It is {number}." for number in range(200)]
        assert len(_kept(server.out, 201)) == 201


# ---- a model server that dies


def test_a_model_server_that_dies_is_a_502_and_its_return_is_noticed() -> None:
    fake = FakeServer(lambda body: "<answer>Vell.</answer>")
    with in_thread(fake) as url:
        config = {"run": RunConfig(model=url, profile="nano", mode=Mode.CHAT, limits={"seconds": 3}), "name": AGENT}
        with served(None, config=config) as server:
            assert exchange(server.url, post(ASK)).status == 200
            with nothing_left(server):
                fake.trouble = [drop] * 200
                answer = exchange(server.url, post(ASK))
                assert (answer.status, answer.error["code"]) == (502, "model_error")
                fake.trouble = []
                assert exchange(server.url, post(ASK)).status == 200


def test_a_model_server_that_dies_in_mid_stream_is_an_error_event() -> None:
    script: list[str | Exception] = [
        "<think>I look it up.</think>\n<web_search>Vell</web_search>",
        ModelError("the server is gone"),
    ]
    with served(script) as server, nothing_left(server):
        answer = exchange(server.url, post({**ASK, "stream": True}))
    assert answer.status == 200
    events = [line for line in answer.body.decode().splitlines() if line.startswith("data: ")]
    assert events[-1] == "data: [DONE]"
    error = json.loads(events[-2][6:])["error"]
    assert (error["type"], error["code"]) == ("server_error", "model_error")


# ---- the end of the server


def slow(seconds: float) -> Any:
    async def handler(request: Any) -> None:
        await asyncio.sleep(seconds)

    return handler


def served_by(url: str, folder: Path, *settings: str) -> ServeCommand:
    chosen = [argument for setting in settings for argument in ("--set", setting)]
    return ServeCommand(folder, "--model", url, "--profile", "nano", "--name", AGENT, *chosen)


def in_background(work: Any, *arguments: Any) -> tuple[threading.Thread, list[Any]]:
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work(*arguments))
        except OSError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


def test_sigterm_lets_runs_finish_cancels_the_rest_and_saves_all(tmp_path: Path) -> None:
    fake = FakeServer(lambda body: "<answer>Vell.</answer>", owner="other")
    with in_thread(fake) as url, served_by(url, tmp_path, "run.mode=chat", "shutdown_s=2") as server:
        fake.trouble = [slow(0.7)] * 8 + [slow(30)] * 8
        finishing = [in_background(exchange, server.url, post(ASK)) for _ in range(8)]
        assert within(5, lambda: len(fake.trouble) == 8)
        streams = [in_background(exchange, server.url, post({**ASK, "stream": True})) for _ in range(8)]
        assert within(5, lambda: not fake.trouble)
        code = server.end(signal.SIGTERM)
        for thread, _ in (*finishing, *streams):
            thread.join(10)
    assert code == 0, (tmp_path / "log.txt").read_text()
    assert [answers[0].status for _, answers in finishing] == [200] * 8
    for _, answers in streams:
        assert answers[0].status == 503 and answers[0].error["code"] == "run_cancelled"
    stops = sorted(str(run.stop) for run in read(tmp_path / "runs.jsonl"))
    assert stops == ["answered"] * 8 + ["interrupted"] * 8
    assert "Traceback" not in (tmp_path / "log.txt").read_text()


def test_kill_and_restart_keeps_what_was_stored_and_a_waiting_run_goes_on(tmp_path: Path) -> None:
    call = '<think>I ask.</think>\n<height>\n```json\n{"place": "Vell"}\n```\n</height>'

    def script(body: dict[str, Any]) -> str:
        told = json.dumps(body["messages"])
        return "<answer>300 m.</answer>" if "300 m" in told else call if "height" in told else "<answer>Vell.</answer>"

    schema = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
    tools: Any = [{"type": "function", "function": {"name": "height", "parameters": schema}}]
    question: Any = {"role": "user", "content": "How tall is it?"}
    with in_thread(FakeServer(script, owner="other")) as url:
        with served_by(url, tmp_path, "run.mode=chat") as server:
            with _client(server) as client:
                client.chat.completions.create(model=AGENT, messages=[question])
                said: Any = client.chat.completions.create(model=AGENT, messages=[question], tools=tools, store=True)
            server.end(signal.SIGKILL)
        assert len(list(read(tmp_path / "runs.jsonl"))) == 1
        message = said.choices[0].message
        result: Any = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "It is 300 m."}
        with served_by(url, tmp_path, "run.mode=chat") as server:
            with _client(server) as client:
                answered = client.chat.completions.create(
                    model=AGENT, messages=[question, message, result], tools=tools
                )
            assert server.end(signal.SIGTERM) == 0
    assert answered.choices[0].message.content == "300 m."
    kept = list(read(tmp_path / "runs.jsonl"))
    assert [run.answer for run in kept] == ["Vell.", "300 m."]
    assert kept[1].task.id == said.id.removeprefix("chatcmpl-"), "it is the same run, not a rebuilt one"


def _client(server: ServeCommand) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
