"""A name that the hub does not have: one question, no retries, no noise."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest


class Counting(BaseHTTPRequestHandler):
    """Answers 404, or not at all."""

    def do_GET(self) -> None:
        self._asked()

    def do_HEAD(self) -> None:
        self._asked()

    def _asked(self) -> None:
        server: Any = self.server
        if "nothing" in self.path or "nowhere" in self.path:  # the library has questions of its own
            server.asked.append(self.path)
        if server.hangs:
            server.over.wait(60)
            return
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Any]:
    found: Any = ThreadingHTTPServer(("127.0.0.1", 0), Counting)
    found.daemon_threads, found.asked, found.hangs, found.over = True, [], False, threading.Event()
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield found
    found.over.set()
    found.shutdown()
    found.server_close()


def coa(*words: str, endpoint: str, cache: Path) -> subprocess.CompletedProcess[str]:
    """With less patience than usual: what is tested is the number of questions, not the time."""
    code = "import sys, coa.hub; coa.hub.PATIENCE_S = 1.0; from coa.cli import main; main(sys.argv[1:])"
    environment = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
    environment |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(cache), "HF_HUB_OFFLINE": "0"}
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, cwd=cache)


def _said(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stderr.splitlines()


def test_a_model_that_the_hub_does_not_have_is_asked_for_once(server: Any, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{server.server_port}"
    error, hint = _said(coa("run", "hi", "--model", "lab/nothing", endpoint=url, cache=tmp_path))
    assert error.startswith("error: there is no folder lab/nothing") and "there is no such model" in error
    assert "hf auth login" in hint and server.asked == ["/api/models/lab/nothing"]


def test_data_that_the_hub_does_not_have_is_asked_for_once(server: Any, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{server.server_port}"
    error, hint = _said(coa("inspect", "nowhere/x", endpoint=url, cache=tmp_path))
    assert "there is no file or folder nowhere/x" in error and "there is no such data set" in error
    assert hint.strip().startswith("hint: ") and server.asked == ["/api/datasets/nowhere/x"]


def test_a_hub_that_hangs_is_asked_once_too(server: Any, tmp_path: Path) -> None:
    server.hangs = True
    url = f"http://127.0.0.1:{server.server_port}"
    error, hint = _said(coa("run", "hi", "--model", "lab/nothing", endpoint=url, cache=tmp_path))
    assert f"{url} did not answer in 1 seconds" in error and "check the connection" in hint
    assert len(server.asked) <= 1


def test_a_hub_that_cannot_be_reached_makes_two_lines(tmp_path: Path) -> None:
    error, hint = _said(coa("run", "hi", "--model", "nosuch", endpoint="http://127.0.0.1:9", cache=tmp_path))
    assert "there is no folder nosuch" in error and "http://127.0.0.1:9 cannot be reached" in error
    assert "nano, smollm2" in hint
