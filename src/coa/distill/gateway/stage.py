"""`record`: the gateway as a context manager, in a thread of its own.

with coa.record(coa.RecordConfig(upstream="http://127.0.0.1:8000"), "traces/") as gateway:
    client = OpenAI(base_url=gateway.base_url(run="task-1", agent="planner"))
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from coa.addresses import public
from coa.distill.gateway.call_log import CallLog, Counts
from coa.distill.gateway.config import PORT, PROXY_HOST, RecordConfig
from coa.distill.gateway.program import run_program
from coa.distill.gateway.proxy import Proxy
from coa.distill.gateway.routes import prefix
from coa.errors import RecordingError, refused

log = logging.getLogger(__name__)
_FILES: Final = 8192
"""Each call on its way needs two connections."""
_DRAIN_S: Final = 5.0


def record(config: RecordConfig, out: str | Path, *, on_problem: Callable[[str], None] | None = None) -> Gateway:
    """Open a gateway that forwards model calls to a server and records them.

    Use the result in a `with` block: the gateway listens until the block ends.

    Args:
        config: The server to forward to, and what to keep of each call.
        out: Folder of the recordings.
        on_problem: Receives a message if a call cannot be written to disk. Calls are forwarded nevertheless.

    Returns:
        The gateway.

    Raises:
        CoaError: A setting is wrong, or the gateway cannot listen on its port.
    """
    return Gateway(config, Path(out), on_problem=on_problem)


class Gateway:
    """A recording proxy in front of a model server. Use it in a `with` block; `base_url` is what clients connect to."""

    def __init__(self, config: RecordConfig, out: Path, on_problem: Callable[[str], None] | None = None) -> None:
        config.check()
        self.config, self.out = config, out
        self._calls = CallLog(out, redact=config.redact, on_problem=on_problem)
        self._proxy = Proxy(config, self._calls)
        self._port: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name="coa-gateway", daemon=True)

    def __enter__(self) -> Self:
        self._calls.start()
        _allow_files()
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            self._thread.join()
            self._calls.close()
            if isinstance(self._failure, OSError):
                port = PORT if self.config.port is None else self.config.port
                raise refused(f"listen on {PROXY_HOST}:{port}", self._failure, RecordingError)
            raise self._failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._calls.close()

    @property
    def url(self) -> str:
        """Address of the gateway, without `/v1`."""
        if self._port is None:
            raise RecordingError(
                "the gateway does not listen yet", hint="use it in a block: with coa.record(...) as gateway"
            )
        return f"http://{PROXY_HOST}:{self._port}"

    def base_url(self, run: str | None = None, agent: str | None = None) -> str:
        """Base URL for OpenAI's clients. Calls that use it belong to this run and this agent."""
        return f"{self.url}{prefix(run, agent)}/v1"

    def variables(self, run: str | None = None) -> dict[str, str]:
        """Return the environment variables that point programs at the gateway."""
        openai = self.base_url(run)
        return {
            "OPENAI_BASE_URL": openai, "OPENAI_API_BASE": openai, "ANTHROPIC_BASE_URL": openai.removesuffix("/v1"),
        }  # fmt: skip

    def environment(self, run: str | None = None, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the whole environment for a program that is to be recorded."""
        found = {**(os.environ if base is None else base), **self.variables(run)}
        for name in ("NO_PROXY", "no_proxy"):
            hosts = [host for host in found.get(name, "").split(",") if host]
            found[name] = ",".join(dict.fromkeys([*hosts, PROXY_HOST, "localhost"]))
        # The clients refuse to start without a key, also where the server needs none.
        found.setdefault("OPENAI_API_KEY", "none")
        found.setdefault("ANTHROPIC_API_KEY", "none")
        return found

    def run(self, command: Sequence[str]) -> int:
        """Run a program behind the gateway and return its exit code. Its output and its signals pass through."""
        code = run_program(command, self.environment())
        self._drain(None)
        self.write("outcome", None, {"answer": None, "exit": code, "error": None, "stdout": ""})
        return code

    def write(self, event: str, run: str | None, values: dict[str, Any]) -> None:
        """Add a line about a run as a whole to its file."""
        self._calls.event(event, run, values)

    def follow(self, run: str) -> Counts:
        """What the calls of a run sum up to, from now on."""
        return self._calls.by_run.setdefault(run, Counts())

    def end_run(self, run: str) -> None:
        """Accept no more calls of a run, and wait for those that are on their way to end."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._proxy.ended.add, run)
        self._drain(run)

    @property
    def counts(self) -> Counts:
        """What has been recorded so far."""
        return self._calls.counts

    @property
    def open_calls(self) -> int:
        return sum(self._proxy.open.copy().values())

    @property
    def files(self) -> list[Path]:
        """The files that have been written to."""
        return sorted(self._calls.files)

    @property
    def upstream(self) -> str:
        """For messages: without the password that the address may hold."""
        return public(self.config.upstream)

    def _drain(self, run: str | None) -> None:
        until = time.monotonic() + _DRAIN_S
        while self._proxy.open.get(run) and time.monotonic() < until:
            time.sleep(0.01)

    def _serve(self) -> None:
        try:
            asyncio.run(self._until_stopped())
        except BaseException as error:
            self._failure = error
            if self._port is not None:
                log.error("the gateway ended: %s: %s", type(error).__name__, error)
        finally:
            self._ready.set()

    async def _until_stopped(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._port = await self._proxy.start()
        self._ready.set()
        try:
            await self._stop.wait()
        finally:
            await self._proxy.close()


def _allow_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _FILES:
        try:
            resource.setrlimit(
                resource.RLIMIT_NOFILE, (min(_FILES, hard) if hard != resource.RLIM_INFINITY else _FILES, hard)
            )
        except (OSError, ValueError):
            log.info("the limit on open files stays at %d", soft)
