"""Odd and huge bodies, full disks, killed gateways: the team goes on, and the files stay readable."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from coa.distill.gateway.config import RecordConfig
from coa.distill.gateway.stage import Gateway, record
from support.upstreams import ByteUpstream, always, calls, lines, recording, serving, sse, streams


def post(url: str, body: bytes, **headers: str) -> bytes:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", **named})
    with urllib.request.urlopen(request, timeout=60) as response:
        content: bytes = response.read()
        return content


def chat(gateway: Gateway, run: str | None = None) -> str:
    return f"{gateway.base_url(run)}/chat/completions"


def test_a_body_that_is_no_json_passes_and_is_recorded_as_text(tmp_path: Path) -> None:
    with recording(always("<html>no</html>", Content_Type="text/html"), tmp_path) as (gateway, upstream):
        assert post(chat(gateway), b'{"messages": [') == b"<html>no</html>"
        assert upstream.received[0].body == b'{"messages": ['
    ((request, response),) = calls(tmp_path)
    assert request["body"] is None and request["text"] == '{"messages": ['
    assert response["body"] is None and response["text"] == "<html>no</html>" and response["complete"]


@pytest.mark.parametrize(
    "body",
    [b"\xff\xfe\x00bytes", b'{"a": "\\ud800"}', b'{"a": Infinity}', b"[" * 5000 + b"]" * 5000, b"\xef\xbb\xbf{}", b"7"],
)
def test_odd_bodies_pass_and_leave_a_readable_file(tmp_path: Path, body: bytes) -> None:
    with recording(always(body), tmp_path) as (gateway, upstream):
        assert post(chat(gateway), body) == body and upstream.received[0].body == body
    assert len(calls(tmp_path)) == 1 and gateway.counts.lost == 0


def test_a_file_upload_passes_and_only_its_size_is_recorded(tmp_path: Path) -> None:
    with recording(always("{}"), tmp_path) as (gateway, upstream):
        post(f"{gateway.base_url()}/files", b"--x\r\nbytes\r\n--x--", Content_Type="multipart/form-data; boundary=x")
        assert upstream.received[0].headers["content-type"] == "multipart/form-data; boundary=x"
    assert calls(tmp_path)[0][0]["left_out"] == "a body of 17 bytes of multipart/form-data"


def test_huge_bodies_pass_in_full_and_are_recorded_in_part(tmp_path: Path) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "x" * 3_000_000}]}).encode()
    with recording(always(body), tmp_path, max_body_mb=1) as (gateway, upstream):
        assert post(chat(gateway), body) == body and upstream.received[0].body == body
        assert upstream.received[0].headers["content-length"] == str(len(body))
    for line in calls(tmp_path)[0]:
        assert line["body"] is None and "more than is recorded" in line["left_out"]
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 10_000


def test_large_bodies_within_the_limit_are_recorded_whole(tmp_path: Path) -> None:
    body = {"messages": [{"role": "user", "content": "x" * 3_000_000}]}
    with recording(always(json.dumps(body)), tmp_path) as (gateway, _):
        post(chat(gateway), json.dumps(body).encode())
    assert [line["body"] == body for line in calls(tmp_path)[0]] == [True, True]


def test_a_body_of_unknown_length_passes(tmp_path: Path) -> None:
    def pieces() -> Any:
        yield b'{"messages": '
        yield b"[]}"

    with recording(always("{}"), tmp_path) as (gateway, upstream):
        request = urllib.request.Request(chat(gateway), pieces(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as response:
            assert response.read() == b"{}"
        assert upstream.received[0].body == b'{"messages": []}'
        assert upstream.received[0].headers["transfer-encoding"] == "chunked"
    assert calls(tmp_path)[0][0]["body"] == {"messages": []}


def test_bodies_that_wait_for_the_disk_take_a_bounded_amount_of_memory(tmp_path: Path) -> None:
    body = json.dumps({"messages": ["x" * 600_000]}).encode()
    with recording(always("{}"), tmp_path, max_memory_mb=1) as (gateway, upstream):
        blocked = threading.Event()

        def wait() -> None:  # as for a disk that does not answer for a while
            blocked.wait(30)

        gateway._calls._queue.put(wait)
        for _ in range(3):
            assert post(chat(gateway), body) == b"{}"
        blocked.set()
        assert [len(one.body) for one in upstream.received] == [len(body)] * 3
    kept = [request["body"] is not None for request, _ in calls(tmp_path)]
    assert kept == [True, False, False]


def test_a_stream_longer_than_the_limit_is_recorded_up_to_it(tmp_path: Path) -> None:
    chunk = {"choices": [{"index": 0, "delta": {"content": "x" * 10_000}}]}
    pieces = sse(*[chunk] * 20)
    with recording(streams(*pieces), tmp_path, max_body_mb=0.1) as (gateway, _):
        assert post(chat(gateway), b"{}") == b"".join(pieces)
    ((_, response),) = calls(tmp_path)
    assert not response["complete"] and "all but the first" in response["left_out"]
    assert 0 < len(response["body"]["choices"][0]["message"]["content"]) < 110_000


def test_a_full_disk_does_not_stop_the_team_and_is_reported_once(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "full.calls.jsonl").symlink_to("/dev/full")  # a device on which every write fails for want of space
    upstream = ByteUpstream(always('{"ok": true}'))
    with (
        serving(upstream) as url,
        record(RecordConfig(upstream=url, port=0), tmp_path, on_problem=said.append) as gateway,
    ):
        for _ in range(3):
            assert post(chat(gateway, "full"), b"{}") == b'{"ok": true}'
        assert post(chat(gateway, "other"), b"{}") == b'{"ok": true}'
    assert gateway.counts.lost == 6 and gateway.counts.calls == 4
    (problem,) = said
    assert "No space left on device" in problem and "calls are forwarded" in problem
    assert len((tmp_path / "other.calls.jsonl").read_bytes().splitlines()) == 2


def test_a_folder_that_cannot_be_made_is_refused_before_anything_starts(tmp_path: Path) -> None:
    from coa.errors import CoaError

    (tmp_path / "file").write_text("")
    with (
        pytest.raises(CoaError, match="cannot write"),
        record(RecordConfig(upstream="http://127.0.0.1:9", port=0), tmp_path / "file" / "out"),
    ):
        pass  # pragma: no cover


def test_a_recording_goes_on_behind_a_torn_line(tmp_path: Path) -> None:
    file = tmp_path / "r.calls.jsonl"
    file.write_bytes(b'{"coa_record": 1, "event": "request", "id": "c1-00000000", "bo')
    with recording(always("{}"), tmp_path) as (gateway, _):
        post(chat(gateway, "r"), b"{}")
    torn, *whole = file.read_bytes().splitlines()
    assert torn.endswith(b'"bo') and [json.loads(line)["event"] for line in whole] == ["request", "response"]


COMMAND = [sys.executable, "-m", "coa.cli", "record"]
NOWHERE = ["--upstream", "http://127.0.0.1:9"]


def gateway_process(url: str, folder: Path) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [*COMMAND, "--upstream", url, "--out", str(folder), "--port", "0"], stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("export OPENAI_BASE_URL=http://127.0.0.1:")
    return process, line.strip().partition("=")[2]


def test_after_kill_9_the_file_holds_everything_up_to_then(tmp_path: Path) -> None:
    begun = threading.Event()

    async def reply(request: web.Request, body: bytes) -> web.StreamResponse:
        if b"wait" in body:
            begun.set()
            return await streams(*sse(*[{"choices": []}] * 500), pause_s=0.1)(request, body)
        return web.json_response({"ok": True})

    with serving(ByteUpstream(reply)) as url:
        process, address = gateway_process(url, tmp_path / "out")
        try:
            for _ in range(5):
                post(f"{address}/chat/completions", b"{}")
            waiting = threading.Thread(target=lambda: _swallow(f"{address}/chat/completions", b'{"x": "wait"}'))
            waiting.start()
            assert begun.wait(30)
            until = time.monotonic() + 30
            while len(lines(tmp_path / "out")) < 11 and time.monotonic() < until:
                time.sleep(0.02)
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        waiting.join(30)
    found = lines(tmp_path / "out")
    assert [line["event"] for line in found] == ["request", "response"] * 5 + ["request"]
    assert found[-1]["body"] == {"x": "wait"}


def _swallow(url: str, body: bytes) -> None:
    with suppress(OSError, http.client.HTTPException):  # its connection ends with the gateway
        post(url, body)


def test_ctrl_c_ends_the_gateway_well_and_so_does_a_request_to_end(tmp_path: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        process, address = gateway_process("http://127.0.0.1:9", tmp_path / "out")
        assert address.endswith("/v1")
        os.kill(process.pid, number)
        process.communicate(timeout=60)
        assert process.returncode == 0


TEAM = """
import os, sys, signal, time, urllib.request
if sys.argv[1] == "ask":
    base = os.environ["OPENAI_BASE_URL"]
    assert base == os.environ["OPENAI_API_BASE"] == os.environ["ANTHROPIC_BASE_URL"] + "/v1"
    request = urllib.request.Request(base + "/chat/completions", sys.stdin.buffer.read())
    print(urllib.request.urlopen(request).read().decode())
    print("to stderr", file=sys.stderr)
    sys.exit(int(sys.argv[2]))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
print("ready", flush=True)
time.sleep(60)
"""


def test_a_wrapped_program_keeps_its_input_output_and_exit_code(tmp_path: Path) -> None:
    reply = {"usage": {"prompt_tokens": 1200, "completion_tokens": 34}}
    with serving(ByteUpstream(always(json.dumps(reply)))) as url:
        done = subprocess.run(
            [*COMMAND, "--upstream", url, "--out", str(tmp_path), "--", sys.executable, "-c", TEAM, "ask", "5"],
            input='{"messages": []}', capture_output=True, text=True, timeout=60,
            env={**os.environ, "http_proxy": "http://127.0.0.1:9"},
        )  # fmt: skip
    assert (done.returncode, done.stdout) == (5, json.dumps(reply) + "\n")
    said = done.stderr.splitlines()
    (file,) = tmp_path.glob("session-*.calls.jsonl")
    assert said[0] == "to stderr"
    assert said[1] == f"recorded 1 call, 1,200 tokens read and 34 written, in {file}"
    assert said[2] == f"next: coa profile from-traces {tmp_path} > mine.toml"
    found = lines(tmp_path)
    assert [line["event"] for line in found] == ["request", "response", "outcome"]
    assert found[0]["run"] is None and found[0]["body"] == {"messages": []} and found[2]["exit"] == 5


def test_a_program_that_names_its_runs_leaves_no_session_file(tmp_path: Path) -> None:
    named = TEAM.replace('base + "/chat', 'base.removesuffix("/v1") + "/run/one/v1/chat')
    with serving(ByteUpstream(always("{}"))) as url:
        subprocess.run(
            [*COMMAND, "--upstream", url, "--out", str(tmp_path), "--", sys.executable, "-c", named, "ask", "0"],
            input='{"messages": []}', capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
    assert [path.name for path in tmp_path.glob("*.jsonl")] == ["one.calls.jsonl"]


def test_a_recording_in_which_every_call_failed_points_to_the_upstream(tmp_path: Path) -> None:
    with serving(ByteUpstream(always('{"error": "not found"}', status=404))) as url:
        done = subprocess.run(
            [*COMMAND, "--upstream", url, "--out", str(tmp_path), "--", sys.executable, "-c", TEAM, "ask", "0"],
            input='{"messages": []}', capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert "recorded 1 call (1 failed)" in done.stderr and "next:" not in done.stderr
    assert done.stderr.splitlines()[-1] == f"every call failed; is {url} the right --upstream?"


def test_signals_reach_a_wrapped_program(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, *NOWHERE, "--out", str(tmp_path), "--", sys.executable, "-c", TEAM, "wait"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 9 and "no call of a model was recorded" in errors


def test_a_program_that_is_not_there_is_an_error_with_a_hint(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, *NOWHERE, "--out", str(tmp_path), "--", "no-such-program"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1 and "cannot run no-such-program" in done.stderr and "hint:" in done.stderr
