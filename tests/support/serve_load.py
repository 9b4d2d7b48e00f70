"""Load on a served agent: models that keep a run busy, raw requests, and what is left when everybody has gone."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPResponse
from pathlib import Path
from typing import Any, NamedTuple

from coa.models.base import Context, Finish, Generation, OnText, Sampling
from coa.runtime.live import FOLDER
from coa.trajectory import Usage
from support.served import AGENT, ServedAgent

ASK = {"model": AGENT, "messages": [{"role": "user", "content": "Which tower is the tallest?"}]}


class BusyModel:
    """Begins a thought and then writes no more, until it is cancelled or released."""

    name, tokenizer = "busy", None

    def __init__(self) -> None:
        self.writing = 0
        """Runs that wait for it."""
        self.begun = self.cancelled = 0
        self.released = False

    async def generate(
        self, context: Context, *, stop: Sequence[str], sampling: Sampling, on_text: OnText = None
    ) -> Generation:
        self.writing += 1
        self.begun += 1
        try:
            if on_text is not None:
                on_text("<think>I wait")
            while not self.released:
                await asyncio.sleep(0.02)
            text = "<think>I wait</think>\n<answer>Done.</answer>"
            return Generation(text, Finish.STOP, Usage(prompt_tokens=9, completion_tokens=6, model_calls=1))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.writing -= 1

    async def close(self) -> None:
        pass


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        """The error object; fails if the body does not have the standard shape."""
        error = json.loads(self.body)["error"]
        assert set(error) == {"type", "code", "message", "param"}
        assert isinstance(error["type"], str) and error["message"]
        return dict(error)


def address(url: str) -> tuple[str, int]:
    host, port = url.removeprefix("http://").rstrip("/").rsplit(":", 1)
    return host, int(port)


def connect(url: str, timeout_s: float = 10.0) -> socket.socket:
    return socket.create_connection(address(url), timeout=timeout_s)


def head(path: str = "/v1/chat/completions", *lines: str, method: str = "POST", host: str = "localhost") -> bytes:
    named = [f"{method} {path} HTTP/1.1", f"Host: {host}", *lines]
    return ("\r\n".join(named) + "\r\n\r\n").encode()


def post(body: object, path: str = "/v1/chat/completions") -> bytes:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return head(path, "Content-Type: application/json", f"Content-Length: {len(raw)}") + raw


def exchange(url: str, request: bytes) -> Answer:
    """Send the bytes, and read one response that ends with its length or with the connection."""
    with connect(url) as link:
        link.sendall(request)
        return read_answer(link)


def read_answer(link: socket.socket) -> Answer:
    response = HTTPResponse(link)
    try:
        response.begin()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, headers, response.read())
    finally:
        response.close()


def begin_stream(url: str, body: dict[str, Any] = ASK, path: str = "/v1/chat/completions") -> socket.socket:
    """A stream of which the first event has arrived."""
    link = connect(url)
    link.sendall(post({**body, "stream": True}, path))
    found = b""
    while b"data: " not in found:
        piece = link.recv(65536)
        assert piece, found
        found += piece
    return link


def within(seconds: float, holds: Callable[[], bool]) -> bool:
    """Whether it comes true in that time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.02)
    return holds()


class Remains(NamedTuple):
    """What a server holds while nobody asks it anything."""

    tasks: int
    connections: int
    active: int
    files: int

    @classmethod
    def of(cls, served: ServedAgent) -> Remains:
        server = served.server._uvicorn
        assert server is not None and served.server.service is not None
        loop = server.servers[0].get_loop()
        connections = len(server.server_state.connections)
        tasks = len(asyncio.all_tasks(loop))
        return cls(tasks, connections, served.server.service.active, _open_files())


def _open_files() -> int:
    """Number of open files, without the feed of running chains, which the first run opens and the server keeps."""
    count = 0
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # it was closed in the meantime
            count += f"/{FOLDER}/" not in os.readlink(f"/proc/self/fd/{number}")
    return count


@contextmanager
def nothing_left(served: ServedAgent, seconds: float = 5.0) -> Iterator[None]:
    """Afterwards the server holds no more tasks, connections, runs and files than before."""
    before = Remains.of(served)
    yield
    assert within(seconds, lambda: all(now <= then for now, then in zip(Remains.of(served), before, strict=True))), (
        before,
        Remains.of(served),
    )


class ServeCommand:
    """`coa serve` as a process of its own."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        self.out, self.folder = folder / "runs.jsonl", folder
        self._arguments = [
            *map(str, arguments),
            "--out",
            str(self.out),
            "--port",
            "0",
            "--set",
            f"state={folder}/state",
        ]
        self.url = ""
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> ServeCommand:
        command = [sys.executable, "-m", "coa.cli", "serve", *self._arguments]
        log = (self.folder / "log.txt").open("a")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        log.close()
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://\S+?(?=/v1)", line)
        assert found is not None, (line, (self.folder / "log.txt").read_text())
        self.url = found.group()
        return self

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def end(self, sign: int = signal.SIGTERM, seconds: float = 20.0) -> int:
        """Send the signal, and return the exit code."""
        assert self.process is not None and self.process.stdout is not None
        self.process.send_signal(sign)
        try:
            return self.process.wait(seconds)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()

    def __enter__(self) -> ServeCommand:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.end(signal.SIGKILL)
        elif self.process is not None and self.process.stdout is not None:
            self.process.stdout.close()


def descendants(pid: int) -> list[int]:
    """Processes that it started, and those that they started."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue
            fields = stat.rsplit(")", 1)[1].split()
            if fields[0] != "Z":
                parents.setdefault(int(fields[1]), []).append(int(entry))
    found, waiting = list[int](), [pid]
    while waiting:
        children = parents.get(waiting.pop(), [])
        found += children
        waiting += children
    return found
