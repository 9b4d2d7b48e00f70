"""Sandboxes on other machines: several `coa sandbox serve`. The least busy is asked first, and the next if it fails."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import aiohttp
import orjson
from pydantic import ValidationError

from coa.sandbox.base import CodeVerdict, Program, ProgramLimits, ProgramResult, Sandbox, Script, writable
from coa.sandbox.wire import RUN_ANSWER, RunRequest

REST_S: Final = 10.0
"""How long no request goes to a server that failed."""
WAIT_S: Final = 300.0
"""How long a run may wait for its turn on a server, on top of its time limit."""


@dataclass
class _RemoteServer:
    url: str
    busy: int = 0
    rests_until: float = 0.0


class RemoteSandbox(Sandbox):
    def __init__(self, urls: Sequence[str], *, token: str | None = None, limits: ProgramLimits | None = None) -> None:
        self.limits = limits or ProgramLimits()
        self._servers = [_RemoteServer(url.rstrip("/")) for url in urls]
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._session: aiohttp.ClientSession | None = None

    @property
    def about(self) -> str:
        return f"remote: {', '.join(server.url for server in self._servers)}"

    async def run_script(self, script: Script, limits: ProgramLimits) -> ProgramResult:
        return await self.ask(RunRequest.of(script, limits))

    async def program(self, code: str, *, prelude: str = "", limits: ProgramLimits | None = None) -> RemoteProgram:
        return RemoteProgram(self, RunRequest.of(Script(code, prelude=prelude), limits or self.limits, test=True))

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def ask(self, request: RunRequest) -> ProgramResult:
        """One answer from the least busy server; each server is tried once."""
        if self._session is None:
            # No limit on our side: a run that waits for a connection would look like a server that is gone.
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(headers=self._headers, trust_env=False, connector=connector)
        body = request.model_dump_json(exclude_defaults=True).encode()
        timeout = aiohttp.ClientTimeout(total=request.limits.wall_s + WAIT_S, sock_connect=10)
        reasons = []
        for server in self._in_order():
            server.busy += 1
            try:
                async with self._session.post(f"{server.url}/run", data=io.BytesIO(body), timeout=timeout) as response:
                    data = await response.read()
                    if response.status == 422:
                        return ProgramResult(
                            CodeVerdict.SANDBOX_ERROR, note=_reason(data)
                        )  # every server would refuse it
                    if response.status == 200:
                        answer = RUN_ANSWER.validate_json(data)
                        if answer.verdict is not CodeVerdict.SANDBOX_ERROR:
                            server.rests_until = 0.0
                            return answer
                        reasons.append(f"{server.url}: {answer.note}")
                    else:
                        reasons.append(f"{server.url}: {response.status} {_reason(data)}")
                    if response.status in (400, 413):
                        continue  # above this server's caps; the server works, and another one may allow more
            except (aiohttp.ClientError, TimeoutError, OSError, ValidationError) as error:
                reasons.append(f"{server.url}: {type(error).__name__} {error}")
            finally:
                server.busy -= 1
            server.rests_until = time.monotonic() + REST_S
        return ProgramResult(CodeVerdict.SANDBOX_ERROR, note=f"no sandbox server took it ({'; '.join(reasons)})")

    def _in_order(self) -> list[_RemoteServer]:
        """Servers at rest come last, but they are tried: if all of them are at rest, one may be back."""
        now = time.monotonic()
        return sorted(self._servers, key=lambda server: (server.rests_until > now, server.busy))


class RemoteProgram(Program):
    """The server keeps it compiled between tests, and forgets the programs that it has not seen for longest."""

    def __init__(self, sandbox: RemoteSandbox, request: RunRequest) -> None:
        self._sandbox, self._request = sandbox, request

    async def test(self, stdin: bytes, function: str | None = None, assertions: str | None = None) -> ProgramResult:
        if self.compile_error is not None:
            return self.compile_error
        update = {"stdin": stdin, "function": function, "assertions": assertions and writable(assertions)}
        result = await self._sandbox.ask(self._request.model_copy(update=update))
        if result.verdict is CodeVerdict.CE:
            self.compile_error = result
        return result


def _reason(data: bytes) -> str:
    try:
        message = orjson.loads(data)
    except orjson.JSONDecodeError:
        return data[:200].decode("utf-8", "replace")
    return str(message.get("error", message)) if isinstance(message, dict) else str(message)
