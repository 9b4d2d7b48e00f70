"""`coa mcp` as an assistant starts it: the real command on stdio and HTTP, with the real client and with our own."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters

from coa.models.scripted import ScriptedModel
from coa.tools.mcp import open_mcp
from coa.trajectory import Stop, read
from support.mcp_client import CreatedTask, TaskClient
from support.runs import run
from support.served import served
from support.servers import FakeServer, in_thread

COA = [sys.executable, "-m", "coa.cli", "mcp"]
SCRIPTED = [sys.executable, "-m", "support.mcp_agent"]
TESTS = str(Path(__file__).parents[1])
QUESTION = "Add the population of the city Ilburg and that of the city Elrick."


@asynccontextmanager
async def started(command: list[str], folder: Path, **options: Any) -> AsyncIterator[Client]:
    environment = {**os.environ, "XDG_STATE_HOME": str(folder), "PYTHONPATH": TESTS}
    parameters = StdioServerParameters(command=command[0], args=command[1:], env=environment)
    async with Client(parameters, **options) as client:
        yield client


def scripted(folder: Path) -> list[str]:
    return [*SCRIPTED, str(folder / "state"), str(folder / "runs")]


def test_nano_answers_over_stdio_and_its_runs_are_kept(tmp_path: Path) -> None:
    heard: list[str] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append((message or "").partition(":")[0])

    async def ask() -> tuple[Any, Any]:
        command = [*COA, "--model", "nano", "--seed", "1", "--out", str(tmp_path / "runs")]
        async with started(command, tmp_path) as client:
            first = await client.call_tool("ask", {"question": QUESTION}, progress_callback=hear)
            handle = first.structured_content["run_id"]
            return first, await client.call_tool("ask", {"question": QUESTION, "follow_up": handle, "effort": "none"})

    first, second = asyncio.run(ask())
    asked, followed = read(tmp_path / "runs")
    assert first.structured_content["answer"] == asked.answer
    steps = [agent for agent in heard if agent not in ("working", "opening the model")]
    assert steps == [step.agent for step in asked.steps]
    assert [turn.content for turn in followed.task.conversation] == [QUESTION, asked.answer]
    assert second.is_error == (not (followed.answer or "").strip())


def test_stdout_carries_only_the_protocol_and_the_end_of_stdin_ends_the_server(tmp_path: Path) -> None:
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    messages = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {
            "jsonrpc": "2.0",
            "id": 2,
            "method": "tools/call",
            "params": {"name": "ask", "arguments": {"question": "so?"}},
        },
    ]
    pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    server = subprocess.Popen(scripted(tmp_path), text=True, env={**os.environ, "PYTHONPATH": TESTS}, **pipes)
    assert server.stdin is not None and server.stdout is not None and server.stderr is not None
    for message in ("not JSON", *map(json.dumps, messages)):
        server.stdin.write(message + "\n")
    server.stdin.flush()
    answers = [json.loads(server.stdout.readline()) for _ in range(2)]
    rest, said = server.communicate(timeout=60)
    assert [answer["id"] for answer in answers] == [1, 2] and rest == ""
    assert answers[0]["result"]["serverInfo"]["name"] == "coa"
    assert answers[1]["result"]["structuredContent"]["answer"] == "SO?"
    assert "a line that no client may see" in said and "Traceback" not in said
    assert server.returncode == 0


@pytest.mark.parametrize("how", ["stdin", "sigterm", "cancel"])
def test_a_run_ends_with_its_client_and_is_kept(tmp_path: Path, how: str) -> None:
    async def ask() -> None:
        async with started(scripted(tmp_path), tmp_path) as client:
            asking = asyncio.create_task(
                client.call_tool("ask", {"question": "forever"}, progress_callback=_first(heard := asyncio.Event()))
            )
            await asyncio.wait_for(heard.wait(), 60)
            if how == "sigterm":
                (child,) = _children()
                os.kill(child, signal.SIGTERM)
                await asyncio.gather(asking, return_exceptions=True)
            elif how == "cancel":
                asking.cancel()
                answer = await client.call_tool("ask", {"question": "so?"})
                assert answer.content[0].text == "SO?"  # type: ignore[union-attr]
            else:
                asking.cancel()

    asyncio.run(ask())
    (stopped,) = (made for made in read(tmp_path / "runs") if made.task.question == "forever")
    assert stopped.stop is Stop.INTERRUPTED and stopped.steps[0].text == "This takes long."


def _first(heard: asyncio.Event) -> Any:
    async def hear(progress: float, total: float | None, message: str | None) -> None:
        if message == "think: This takes long.":
            heard.set()

    return hear


def _children() -> list[int]:
    """Processes that this one started and that still run."""
    me = os.getpid()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                command = (entry / "cmdline").read_text()
            except OSError:
                continue
            if parent == me and "mcp_agent" in command:
                found.append(int(entry.name))
    return found


def test_a_task_works_over_stdio(tmp_path: Path) -> None:
    async def ask() -> tuple[Any, Any]:
        async with started(scripted(tmp_path), tmp_path, extensions=[TaskClient()]) as client:
            created = await client.session.call_tool("ask", {"question": "so?"}, allow_claimed=True)
            return created, await client.call_tool("ask", {"question": "and?"})

    created, resolved = asyncio.run(ask())
    assert isinstance(created, CreatedTask) and resolved.content[0].text == "AND?"


def test_a_model_that_does_not_exist_ends_the_server_with_an_error(tmp_path: Path) -> None:
    command = [*COA, "--model", str(tmp_path / "nothing"), "--profile", "nano"]
    done = subprocess.run(command, stdin=subprocess.PIPE, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stdout == ""
    assert f"error: there is no folder {tmp_path / 'nothing'}" in done.stderr and "Traceback" not in done.stderr


def test_options_of_http_without_http_are_refused() -> None:
    done = subprocess.run([*COA, "--port", "9"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "error: --host, --port and --keys-file need --http" in done.stderr


def test_over_http_only_mcp_is_served(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    with in_thread(FakeServer(lambda body: "<answer>The Vell tower.</answer>")) as model:
        command = [*COA, "--http", "--port", "0", "--model", model, "--set", "run.mode=chat", "--profile", "nano"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        assert server.stdout is not None
        try:
            url = server.stdout.readline().rpartition(" ")[2].strip()

            async def ask() -> Any:
                async with Client(url) as client:
                    return await client.call_tool("ask", {"question": "Which tower?"})

            assert asyncio.run(ask()).content[0].text == "The Vell tower."
            assert httpx2.get(url.replace("/mcp", "/v1/models")).status_code == 404
            assert httpx2.get(url.replace("/mcp", "/health")).status_code == 200
        finally:
            server.send_signal(signal.SIGTERM)
            _, said = server.communicate(timeout=60)
    assert "Traceback" not in said


def test_our_own_client_asks_our_own_server(tmp_path: Path) -> None:
    """Every tool of an MCP server can be a tool of a run: so one agent can ask another."""

    async def ask(*places: str) -> list[str]:
        environment = {"COA_MCP_PASS": "PYTHONPATH", "PYTHONPATH": TESTS}
        async with open_mcp(list(places), environment=environment) as tools:
            script = ['<think>Ask.</think><ask>{"question": "which tower?"}</ask>', "<answer>done</answer>"]
            made = await run("Which?", ScriptedModel(script), tools, "nano")
            return [step.text for step in made.steps if step.agent == "observation"]

    with served() as server:
        (over_http,) = asyncio.run(ask(f"{server.url}/mcp"))
    (over_stdio,) = asyncio.run(ask(shlex.join(scripted(tmp_path))))
    assert over_http.startswith("The Vell tower.\nSources: https://towers.example/vell\nTo ask a follow-up question")
    assert over_stdio.startswith("WHICH TOWER?")
