"""`coa sandbox serve`: a sandbox behind HTTP, for other machines and other projects.

Requests come from programs of strangers. What a request may cost before it runs is limited here and in connections.py:
the time until it has arrived, the memory of all bodies together, and the memory that reading one as JSON takes. What is
in it, arguments of functions included, is only looked at where the program runs.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError

from coa.sandbox.base import MB, Program, ProgramResult, Sandbox, SandboxError, Script
from coa.sandbox.caps import AboveCap, Caps
from coa.sandbox.connections import Connections, busy
from coa.sandbox.wire import RUN_ANSWER, FusionAnswer, FusionRequest, RunRequest

DEFAULT = Caps()
STRUCTURE_BYTES: Final = MB
"""Of a request's JSON outside of strings, where little is needed. Brackets take fifty times their size."""

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_Asked = TypeVar("_Asked", bound=BaseModel)


def make_app(sandbox: Sandbox, *, token: str | None, caps: Caps = DEFAULT) -> web.Application:
    """Every request must carry `token` as its bearer token. Only a server that nobody else can reach needs none.

    Without a token, requests that a web page makes are refused: a browser sends them from this machine too. Requests
    beyond `caps.waiting` get 503 immediately, so that a client tries another server.
    """
    server = _SandboxServer(sandbox, token, caps)
    app = web.Application(client_max_size=caps.body_bytes, middlewares=[server.guard])
    app.add_routes(
        [web.post("/run", server.run), web.post("/run_code", server.run_code), web.get("/health", server.health)]
    )
    app.on_cleanup.append(server.close)
    return app


class _SandboxServer:
    def __init__(self, sandbox: Sandbox, token: str | None, caps: Caps) -> None:
        self.sandbox, self.token, self.caps = sandbox, token, caps
        self.waiting = self.done = self.held_bytes = 0
        self.programs: OrderedDict[str, Program] = OrderedDict()
        self.in_use: Counter[str] = Counter()

    @web.middleware
    async def guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        with busy(request):
            response = self._refusal(request) or await self._handle(request, handler)
            try:
                async with asyncio.timeout(self.caps.idle_s):  # for a client that does not read the answer
                    await response.prepare(request)
                    await response.write_eof()
            except TimeoutError:
                if request.transport is not None:
                    request.transport.abort()
            return response

    def _refusal(self, request: web.Request) -> web.Response | None:
        """For what the headers alone decide."""
        if self.token is None:
            if "Origin" in request.headers or not _names_this_machine(request.headers.get("Host", "")):
                return _problem(
                    403,
                    "a server without a token answers no web page, and only requests to localhost; "
                    "hint: start it with --token-env NAME",
                )
        elif not hmac.compare_digest(
            request.headers.get("Authorization", "").encode("utf-8", "replace"), f"Bearer {self.token}".encode()
        ):
            return _problem(401, "the bearer token is missing or wrong")
        if self.waiting >= self.caps.waiting:
            return _problem(503, f"{self.waiting} runs are waiting already")
        return None

    async def _handle(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        # The size is known before the body is read, unless it comes in chunks or compressed.
        size = request.content_length
        if not request.body_exists:
            size = 0
        elif size is None or "Content-Encoding" in request.headers:
            size = self.caps.body_bytes
        size = min(size, self.caps.body_bytes)  # a larger one is refused while it is read
        if self.held_bytes and self.held_bytes + size > self.caps.held_bytes:
            return _problem(503, f"requests of {self.held_bytes} bytes are waiting already")
        self.waiting += 1
        self.held_bytes += size
        try:
            return await handler(request)
        except AboveCap as error:
            return _problem(error.status, str(error))
        except web.HTTPRequestEntityTooLarge:
            return _problem(413, f"the request is above this server's cap of {self.caps.body_bytes} bytes")
        except (ValidationError, SandboxError) as error:
            return _problem(422, str(error))
        finally:
            self.waiting -= 1
            self.held_bytes -= size
            self.done += 1

    async def _read(self, request: web.Request, shape: type[_Asked]) -> _Asked:
        try:
            async with asyncio.timeout(self.caps.body_s):
                body = await request.read()
        except TimeoutError as error:
            raise AboveCap(f"the request took more than {self.caps.body_s:g} seconds to arrive", 408) from error
        _check_structure(body)
        return shape.model_validate_json(body)

    async def health(self, request: web.Request) -> web.Response:
        facts = {"sandbox": self.sandbox.about, "waiting": self.waiting - 1, "done": self.done}
        return web.json_response(facts)

    async def run(self, request: web.Request) -> web.Response:
        asked = await self._read(request, RunRequest)
        return web.Response(body=RUN_ANSWER.dump_json(await self._result(asked)), content_type="application/json")

    async def _result(self, asked: RunRequest) -> ProgramResult:
        self.caps.check_sizes(**asked.sizes())
        limits = self.caps.limits(asked.limits.asked())
        if not asked.test and asked.function is None and asked.assertions is None:
            script = Script(asked.code, asked.stdin, asked.arguments, asked.files, asked.collect)
            return await self.sandbox.run_script(script, limits)
        key = hashlib.sha256(repr((asked.code, asked.prelude, limits)).encode()).hexdigest()
        program = self.programs.pop(key, None)
        if program is None:
            program = await self.sandbox.program(asked.code, prelude=asked.prelude, limits=limits)
        self.programs[key] = program
        self.in_use[key] += 1
        try:
            if asked.assertions is not None:
                return await program.holds(asked.assertions)
            if asked.function is None:
                return await program.run(asked.stdin)
            return await program.test(asked.stdin, function=asked.function)
        finally:
            self.in_use[key] -= 1
            await self._forget_the_oldest()

    async def _forget_the_oldest(self) -> None:
        idle = [key for key in self.programs if not self.in_use[key]]
        for key in idle[: max(len(self.programs) - self.caps.programs, 0)]:
            del self.in_use[key]
            await self.programs.pop(key).close()

    async def run_code(self, request: web.Request) -> web.Response:
        asked = await self._read(request, FusionRequest)
        if asked.language != "python":
            return _problem(422, f"only Python runs here, not {asked.language}")
        answer = FusionAnswer.of(await self._result(asked.run_request()))
        return web.Response(text=answer.model_dump_json(), content_type="application/json")

    async def close(self, app: web.Application) -> None:
        for program in self.programs.values():
            await program.close()
        await self.sandbox.close()


def _names_this_machine(host: str) -> bool:
    """Whether a request was made to localhost, and not to a name that somebody had lead here."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    try:
        return name.lower() == "localhost" or ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def _check_structure(body: bytes) -> None:
    bare = body.replace(rb"\\", b"").replace(rb"\"", b"")
    if bare.count(b'"') > STRUCTURE_BYTES or sum(map(len, bare.split(b'"')[::2])) > STRUCTURE_BYTES:
        raise AboveCap(
            f"the request has more than {STRUCTURE_BYTES} bytes outside of strings, the cap of any server", 413
        )


def _problem(status: int, message: str) -> web.Response:
    return web.json_response({"error": message}, status=status)


@asynccontextmanager
async def listening(
    sandbox: Sandbox, host: str, port: int, token: str | None, caps: Caps = DEFAULT
) -> AsyncIterator[int]:
    """Serve meanwhile. Gives the port, which matters if port 0 was asked for."""
    # A client that disconnects does not want the result: its run is ended.
    runner = web.AppRunner(make_app(sandbox, token=token, caps=caps), access_log=None, handler_cancellation=True)
    await runner.setup()
    assert runner.server is not None
    try:
        accept = Connections(runner.server, caps).accept
        listener = await asyncio.get_running_loop().create_server(accept, host, port)
        try:
            yield listener.sockets[0].getsockname()[1]
        finally:
            listener.close()
    finally:
        await runner.cleanup()


async def serve(
    sandbox: Sandbox, host: str, port: int, token: str | None, ready: Callable[[int], None], caps: Caps = DEFAULT
) -> None:
    """Serve until cancelled. `ready` is called with the port."""
    async with listening(sandbox, host, port, token, caps) as bound:
        ready(bound)
        await asyncio.Event().wait()
