"""`coa serve` as a process of its own, under more load than the tests of every day."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from coa.trajectory import read
from support.serve_load import ASK, ServeCommand, connect, descendants, exchange, head, post, within
from support.served import AGENT
from support.servers import FakeServer, in_thread

pytestmark = pytest.mark.slow
STREAMS = 200


class Waiting(FakeServer):
    """A model server that begins each reply at once and ends it when the test says so."""

    def __init__(self) -> None:
        super().__init__(self.reply, owner="other")
        self.go = False

    def reply(self, body: dict[str, Any]) -> str:
        question = body["messages"][-1]["content"]
        return f"<think>I think.</think>\n<answer>{question.rsplit(' ', 1)[-1]}</answer>"

    async def hold(self, request: Any) -> None:
        while not self.go:
            await asyncio.sleep(0.02)


@pytest.fixture
def model() -> Iterator[tuple[Waiting, str]]:
    fake = Waiting()
    with in_thread(fake) as url:
        yield fake, url


def command(url: str, folder: Path, *settings: str) -> ServeCommand:
    chosen = [part for setting in ("run.mode=chat", *settings) for part in ("--set", setting)]
    return ServeCommand(folder, "--model", url, "--profile", "nano", "--name", AGENT, *chosen)


def files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


async def ask(session: aiohttp.ClientSession, url: str, number: int) -> tuple[int, str]:
    """Status, and the content or the code of the error."""
    body = {"model": AGENT, "messages": [{"role": "user", "content": f"What is {number}"}], "stream": True}
    async with session.post(f"{url}/v1/chat/completions", json=body) as response:
        text = (await response.read()).decode()
    if response.status != 200:
        return response.status, json.loads(text)["error"]["code"]
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    if "error" in events[-1]:
        return 200, events[-1]["error"]["code"]
    return 200, "".join(event["choices"][0]["delta"].get("content", "") for event in events)


async def admitted(client: aiohttp.ClientSession, url: str) -> None:
    """Wait until all runs are running or queued."""
    active = 0
    while active < STREAMS:
        async with client.get(f"{url}/ready") as response:
            active = (await response.json())["active"]
        await asyncio.sleep(0.02)


def session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=120))


def test_two_thousand_half_open_connections_and_two_hundred_streams(model: tuple[Waiting, str], tmp_path: Path) -> None:
    fake, url = model
    fake.go = True

    async def work(server: ServeCommand) -> list[tuple[int, str]]:
        async with session() as client:
            return await asyncio.gather(*(ask(client, server.url, number) for number in range(STREAMS)))

    with command(url, tmp_path, "header_timeout_s=60") as server:
        assert exchange(server.url, post(ASK)).status == 200
        before, children = files(server.pid), descendants(server.pid)
        links = [connect(server.url) for _ in range(2000)]
        for link in links[::2]:
            link.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: loc")
        assert within(10, lambda: files(server.pid) >= before + 1990)
        assert asyncio.run(work(server)) == [(200, str(number)) for number in range(STREAMS)]
        for link in links:
            link.close()
        assert within(20, lambda: files(server.pid) <= before + 64), "the connections to the model server stay open"
        assert descendants(server.pid) == children
        assert exchange(server.url, head("/health", method="GET")).status == 200
        assert server.end(signal.SIGTERM) == 0
    assert len(list(read(tmp_path / "runs.jsonl"))) == STREAMS + 1
    assert "Traceback" not in (tmp_path / "log.txt").read_text()


def test_clients_that_all_go_away_leave_a_server_that_serves(model: tuple[Waiting, str], tmp_path: Path) -> None:
    fake, url = model

    async def leave(server: ServeCommand) -> None:
        fake.trouble = [fake.hold] * STREAMS
        async with session() as client:
            asked = [asyncio.create_task(ask(client, server.url, number)) for number in range(STREAMS)]
            await admitted(client, server.url)
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    with command(url, tmp_path) as server:
        assert exchange(server.url, post(ASK)).status == 200
        before = files(server.pid)
        asyncio.run(leave(server))
        fake.trouble, fake.go = [], True

        def active() -> int:
            return int(json.loads(exchange(server.url, head("/ready", method="GET")).body)["active"])

        assert within(10, lambda: active() == 0)
        assert within(20, lambda: files(server.pid) <= before + 64)
        assert exchange(server.url, post(ASK)).status == 200
        assert server.end(signal.SIGTERM) == 0
    assert len(list(read(tmp_path / "runs.jsonl"))) == STREAMS + 2, "every run that was admitted is kept"


@pytest.mark.parametrize("patience", [0.0, 20.0])
def test_sigterm_under_load_loses_no_run(model: tuple[Waiting, str], tmp_path: Path, patience: float) -> None:
    """Without patience all are cancelled and saved; with it all are finished, the queued ones too."""
    fake, url = model

    async def work(server: ServeCommand) -> list[tuple[int, str]]:
        fake.trouble = [fake.hold] * STREAMS
        async with session() as client:
            asked = [asyncio.create_task(ask(client, server.url, number)) for number in range(STREAMS)]
            await admitted(client, server.url)
            os.kill(server.pid, signal.SIGTERM)
            await asyncio.sleep(0.3)
            fake.go = True
            return await asyncio.gather(*asked)

    with command(url, tmp_path, f"shutdown_s={patience}") as server:
        answers = asyncio.run(work(server))
        assert server.process is not None and server.process.wait(30) == 0
    if patience:
        assert answers == [(200, str(number)) for number in range(STREAMS)]
    else:
        assert set(answers) == {(503, "run_cancelled")}
    kept = list(read(tmp_path / "runs.jsonl"))
    assert len(kept) == STREAMS and {str(run.stop) for run in kept} == ({"answered"} if patience else {"interrupted"})
    assert len({run.task.id for run in kept}) == STREAMS
    assert "Traceback" not in (tmp_path / "log.txt").read_text()
