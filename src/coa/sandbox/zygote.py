"""The supervisor of one warm interpreter (a zygote): it starts it, sends it runs, learns how they ended, replaces it.

The other end of the socket is `inside/launcher.py`, which becomes `inside/zygote.py` when the walls are up. Messages
are JSON; descriptors travel with them. Each run has a number and a future that is resolved with the report of its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from coa.sandbox.base import SandboxError
from coa.sandbox.interpreter import INIT, Interpreter

START_TIMEOUT_S: Final = 120.0
_HERE: Final = str(Path(__file__).parent)


@dataclass
class Zygote:
    """One warm interpreter behind a socket. `preload` names the modules that it imports before the first run."""

    interpreter: Interpreter
    preload: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    """What it reported about itself when it was ready."""
    _process: subprocess.Popen[bytes] | None = None
    _channel: socket.socket | None = None
    _ended: dict[int, asyncio.Future[dict[str, Any]]] = field(default_factory=dict)
    _next: int = 0
    _starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    _loop: asyncio.AbstractEventLoop | None = None
    _closed: bool = False

    async def start(self) -> None:
        """Start the interpreter; while it lives, a second call returns at once."""
        if self._closed:
            raise SandboxError("the sandbox was closed")
        if self._channel is not None and self._loop is not asyncio.get_running_loop():
            raise SandboxError("the sandbox was opened in another event loop", hint="open one in each loop")
        async with self._starting:
            if self._channel is None:
                await self._launch()

    async def _launch(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        start = f"import sys; sys.path.insert(0, {_HERE!r}); from inside.launcher import main; main({theirs.fileno()})"
        try:
            # The environment is empty from the first moment on: what was never there cannot be found in /proc.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", start],
                env={},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise SandboxError(f"the sandbox's launcher cannot be started: {error}") from error
        finally:
            theirs.close()
        ours.setblocking(False)
        inside = self.interpreter
        setup = {"site": inside.site, "preload": self.preload, "writable": inside.writable, "init": INIT}
        loop = asyncio.get_running_loop()
        try:
            for message in (inside.plan(), setup):
                ours.send(json.dumps(message).encode())
            async with asyncio.timeout(START_TIMEOUT_S):
                answer = await loop.sock_recv(ours, 1 << 16)
        except BaseException as error:
            ours.close()
            self._reap()
            if not isinstance(error, OSError):  # which a time-out is too
                raise
            raise SandboxError(f"the sandbox did not start: {error or 'no answer'}") from error
        facts = json.loads(answer) if answer else {"event": "failed", "reason": self._last_words()}
        if facts["event"] != "ready":
            ours.close()
            self._reap()
            raise SandboxError(f"the sandbox did not start: {facts['reason']}")
        self.facts, self._channel, self._loop = facts, ours, loop
        loop.add_reader(ours.fileno(), self._receive)

    async def run(self, limits: dict[str, Any], handles: Sequence[int]) -> tuple[int, asyncio.Future[dict[str, Any]]]:
        """Start a run. Returns its number and the future report of its end; whoever awaits it must set a time limit.

        Raises `SandboxError` if the interpreter is gone and cannot be replaced.
        """
        await self.start()
        channel = self._channel
        if channel is None:
            raise SandboxError("the sandbox was closed")
        self._next += 1
        number = self._next
        end = self._ended[number] = asyncio.get_running_loop().create_future()
        message = json.dumps({"do": "run", "number": number, "limits": limits}).encode()
        while True:
            try:
                socket.send_fds(channel, [message], handles)
                return number, end
            except BlockingIOError:  # a socket whose buffer is full takes the next message later, never half of one
                await asyncio.sleep(0.001)
            except OSError as error:
                del self._ended[number]
                self.replace(f"its socket broke: {error}")
                raise SandboxError(f"the sandbox is gone: {error}") from error

    def forget(self, number: int) -> None:
        future = self._ended.pop(number, None)
        if future is not None and not future.done():
            future.cancel()

    def kill(self, number: int, reason: str) -> None:
        """End one run. `reason` comes back in the report of its end."""
        if self._channel is not None:
            with contextlib.suppress(OSError):
                self._channel.send(json.dumps({"do": "kill", "number": number, "reason": reason}).encode())

    def _receive(self) -> None:
        while self._channel is not None:
            try:
                data = self._channel.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.replace(self._last_words())
                return
            message = json.loads(data)
            future = self._ended.get(message["number"])
            if future is not None and not future.done():
                future.set_result(message)

    def replace(self, why: str) -> None:
        """Give up an interpreter that died or hangs. Its runs end as the sandbox's fault; the next starts a new one."""
        if self._channel is not None:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(self._channel.fileno())
            self._channel.close()
            self._channel = None
        self._reap()
        for number, future in self._ended.items():
            if not future.done():
                future.set_result({"event": "done", "number": number, "error": f"the warm interpreter died: {why}"})

    def _last_words(self) -> str:
        if self._process is None or self._process.stderr is None:
            return "it was closed"
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        os.set_blocking(self._process.stderr.fileno(), False)
        text = (self._process.stderr.read() or b"").decode("utf-8", "replace").strip()
        return text.splitlines()[-1] if text else f"it exited with {self._process.poll()}"

    def _reap(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()  # everything inside dies with it
        process.wait()
        if process.stderr is not None:
            process.stderr.close()

    def close(self) -> None:
        self._closed = True
        self.replace("it was closed")
