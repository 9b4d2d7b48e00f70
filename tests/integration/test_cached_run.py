"""A whole run recorded with `coa run --cache record` and replayed without the tool it was recorded with."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from coa.cli import app
from support.servers import FakeServer

TOOL = """
import random
from coa.tools import Observation
from coa.trajectory import Form, Shape

class Dice:
    about, shape, timeout_s, uses = "throws dice.", Shape(form=Form.LINE), 5.0, ()
    async def call(self, arguments, context):
        return Observation(f"the dice show {random.random()}")
"""


def play(body: dict[str, Any]) -> str:
    turns = sum("dice show" in str(message["content"]) for message in body["messages"])
    return "<think>look</think><web_search>dice</web_search>" if turns == 0 else "<answer>done</answer>"


@pytest.fixture
def server() -> Iterator[str]:
    ready, stop = threading.Event(), threading.Event()
    address: list[str] = []

    async def serve() -> None:
        async with FakeServer(play, owner="someone").running() as url:
            address.append(url)
            ready.set()
            while not stop.is_set():
                await asyncio.sleep(0.02)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(60)
    yield address[0]
    stop.set()
    thread.join()


def test_a_run_is_replayed_to_the_byte_without_its_tool(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("SERPAPI_API_KEY", "SERPER_API_KEY", "SEARXNG_URL"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "dicetool.py").write_text(TOOL)

    def ask(*options: str) -> tuple[list[tuple[str, str]], str]:
        common = ["run", "Throw!", "--model", server, "--mode", "chat", "--profile", "nano", "--json"]
        done = CliRunner().invoke(app, [*common, *options])
        assert done.exit_code == 0, done.exception
        return [(step["agent"], step["text"]) for step in json.loads(done.stdout)["steps"]], done.stderr

    file = ["--cache-file", str(tmp_path / "answers.sqlite")]
    tool = ["--tool", "web_search=dicetool:Dice"]
    first, _ = ask(*tool, "--cache", "record", *file)
    assert "the dice show" in dict(first)["observation"]
    assert ask(*tool, "--cache", "record", *file)[0] == first, "kept from the first time"
    assert ask(*tool)[0] != first, "without the cache the dice are thrown again"
    sys.modules.pop("dicetool")
    (tmp_path / "dicetool.py").unlink()
    assert ask("--cache", "replay", *file)[0] == first
    steps, _ = ask()
    assert "not available" in dict(steps)["observation"]
    assert "the tool web_search is not available: no SERPAPI_API_KEY, SERPER_API_KEY or SEARXNG_URL" in caplog.text
    misused = CliRunner().invoke(app, ["run", "x", "--cache", "sometimes"])
    assert misused.exit_code == 2
