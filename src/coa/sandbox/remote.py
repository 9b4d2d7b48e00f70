"""Sandboxes on other machines: several `coa sandbox serve`, the least busy first, and the next one when one fails."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import aiohttp
import orjson
from pydantic import ValidationError

from coa.sandbox.base import CodeVerdict, ProgramLimits, ProgramResult, SandboxError, writable
from coa.sandbox.cells import written_arguments
from coa.sandbox.streams import to_bytes
from coa.sandbox.wire import RunAnswer, RunRequest, WireLimits

REST_S: Final = 10.0
"""How long a server that failed is left alone."""
WAIT_S: Final = 300.0
"""How long a run may wait for its turn on a server, on top of its own limit."""


@dataclass
class _RemoteServer:
    url: str
    busy: int = 0
    rests_until: float = 0.0


class RemoteSandbox:
    def __init__(self, urls: Sequence[str], *, token: str | None = None, limits: ProgramLimits | None = None) -> None:
        self.limits = limits or ProgramLimits()
        self._servers = [_RemoteServer(url.rstrip("/")) for url in urls]
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._session: aiohttp.ClientSession | None = None

    @property
    def about(self) -> str:
        return f"remote: {', '.join(server.url for server in self._servers)}"

    async def run(
        self,
        code: str,
        *,
        stdin: bytes | str = b"",
        arguments: Sequence[str] = (),
        files: Mapping[str, bytes | str] | None = None,
        collect: Sequence[str] = (),
        limits: ProgramLimits | None = None,
    ) -> ProgramResult:
        return await self.ask(
            RunRequest(
                code=writable(code),
                stdin=to_bytes(stdin),
                arguments=tuple(map(writable, arguments)),
                files={name: to_bytes(content) for name, content in (files or {}).items()},
                collect=tuple(collect),
                limits=_on_the_wire(limits or self.limits),
            )
        )

    async def program(self, code: str, *, prelude: str = "", limits: ProgramLimits | None = None) -> RemoteProgram:
        wire = _on_the_wire(limits or self.limits)
        return RemoteProgram(self, RunRequest(code=writable(code), prelude=prelude, limits=wire, test=True))

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def ask(self, request: RunRequest) -> ProgramResult:
        """One answer from the least busy server; each server is tried once."""
        if self._session is None:
            # No limit of ours: a run that waited for a connection would look like a server that is gone.
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
                        return ProgramResult(CodeVerdict.SANDBOX_ERROR, note=_reason(data))  # every server would say so
                    if response.status == 200:
                        answer = RunAnswer.model_validate_json(data).result()
                        if answer.verdict is not CodeVerdict.SANDBOX_ERROR:
                            server.rests_until = 0.0
                            return answer
                        reasons.append(f"{server.url}: {answer.note}")
                    else:
                        reasons.append(f"{server.url}: {response.status} {_reason(data)}")
                    if response.status in (400, 413):
                        continue  # above this server's caps; it is well, and another one may allow more
            except (aiohttp.ClientError, TimeoutError, OSError, ValidationError) as error:
                reasons.append(f"{server.url}: {type(error).__name__} {error}")
            finally:
                server.busy -= 1
            server.rests_until = time.monotonic() + REST_S
        return ProgramResult(CodeVerdict.SANDBOX_ERROR, note=f"no sandbox server took it ({'; '.join(reasons)})")

    def _in_order(self) -> list[_RemoteServer]:
        """Those at rest come last, not never: with all of them at rest, one may be back."""
        now = time.monotonic()
        return sorted(self._servers, key=lambda server: (server.rests_until > now, server.busy))


class RemoteProgram:
    """The server keeps it compiled between tests."""

    def __init__(self, sandbox: RemoteSandbox, request: RunRequest) -> None:
        self._sandbox, self._request = sandbox, request
        self._broken: ProgramResult | None = None

    @property
    def compile_error(self) -> ProgramResult | None:
        return self._broken

    async def run(self, stdin: bytes | str = b"") -> ProgramResult:
        return await self._test(self._request.model_copy(update={"stdin": to_bytes(stdin)}))

    async def call(self, function: str, arguments: Sequence[object]) -> ProgramResult:
        stdin = written_arguments(arguments)
        return await self._test(self._request.model_copy(update={"stdin": stdin, "function": function}))

    async def holds(self, assertions: str) -> ProgramResult:
        return await self._test(self._request.model_copy(update={"assertions": writable(assertions)}))

    async def _test(self, request: RunRequest) -> ProgramResult:
        if self._broken is None:
            result = await self._sandbox.ask(request)
            if result.verdict is not CodeVerdict.CE:
                return result
            self._broken = result
        return self._broken

    async def close(self) -> None:
        """Nothing is held here; the server forgets the programs it has not seen for longest."""


def _on_the_wire(limits: ProgramLimits) -> WireLimits:
    try:
        return WireLimits(**asdict(limits))
    except ValidationError as error:
        first = error.errors()[0]
        raise SandboxError(f"sandbox servers do not take the limit {first['loc'][0]}: {first['msg']}") from error


def _reason(data: bytes) -> str:
    try:
        message = orjson.loads(data)
    except orjson.JSONDecodeError:
        return data[:200].decode("utf-8", "replace")
    return str(message.get("error", message)) if isinstance(message, dict) else str(message)
