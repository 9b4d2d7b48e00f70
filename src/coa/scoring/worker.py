"""A process that answers JSON lines, on a leash: if it does not answer in time it is killed, and the next call gets a
new one.

Calls block; callers use threads. No signals are used on this side, so that any thread may call.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any


class WorkerGone(Exception):
    """The process ended, or took too long and was ended. `late` tells which."""

    def __init__(self, reason: str, *, late: bool = False) -> None:
        super().__init__(reason)
        self.late = late


class Worker:
    def __init__(self, command: Sequence[str], environment: Mapping[str, str], *, start_s: float = 120.0) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(environment),
            bufsize=0,
            close_fds=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._rest = b""
        self.greeting: dict[str, Any] = self._line(start_s)

    def ask(self, request: Mapping[str, object], timeout_s: float) -> dict[str, Any]:
        """Raises `WorkerGone`, after which this worker is of no use."""
        try:
            data = json.dumps(request).encode() + b"\n"
            while data:
                data = data[self._stdin.write(data) or 0 :]
        except (OSError, ValueError) as error:
            raise WorkerGone("it was not running") from error
        return self._line(timeout_s)

    def kill(self) -> None:
        """Whoever waits for it learns that it is gone."""
        self._process.kill()

    def stop(self) -> None:
        self.kill()
        for pipe in (self._stdin, self._stdout):
            with contextlib.suppress(OSError):
                pipe.close()
        self._process.wait()

    def _line(self, timeout_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        descriptor = self._stdout.fileno()
        poll = select.poll()  # select() itself fails above 1024 descriptors
        poll.register(descriptor, select.POLLIN)
        while b"\n" not in self._rest:
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                self.stop()
                raise WorkerGone(f"no verdict within {timeout_s:g} seconds", late=True)
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                code = self._process.wait()
                self.stop()
                raise WorkerGone(f"the process ended with {code}")
            self._rest += chunk
        line, self._rest = self._rest.split(b"\n", 1)
        reply = json.loads(line)
        assert isinstance(reply, dict)
        return reply
