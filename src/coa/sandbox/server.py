"""`coa sandbox serve`: a sandbox behind HTTP, for other machines and other projects."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable

from aiohttp import web
from pydantic import ValidationError

from coa.sandbox.base import Program, ProgramResult, Sandbox, SandboxError, Script
from coa.sandbox.caps import AboveCap, Caps
from coa.sandbox.inside.cell import read_arguments
from coa.sandbox.wire import RUN_ANSWER, FusionAnswer, FusionRequest, RunRequest

DEFAULT = Caps()

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(sandbox: Sandbox, *, token: str | None, caps: Caps = DEFAULT) -> web.Application:
    """Every request must carry `token` as its bearer token. Only a server that nobody else can reach needs none.

    Requests beyond `caps.waiting` get 503 immediately, so that a client tries another server.
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
        self.waiting = self.done = 0
        self.programs: OrderedDict[str, Program] = OrderedDict()
        self.in_use: Counter[str] = Counter()

    @web.middleware
    async def guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "")
        if self.token is not None and not hmac.compare_digest(
            given.encode("utf-8", "replace"), f"Bearer {self.token}".encode()
        ):
            return _problem(401, "the bearer token is missing or wrong")
        if self.waiting >= self.caps.waiting:
            return _problem(503, f"{self.waiting} runs are waiting already")
        self.waiting += 1
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
            self.done += 1

    async def health(self, request: web.Request) -> web.Response:
        facts = {"sandbox": self.sandbox.about, "waiting": self.waiting - 1, "done": self.done}
        return web.json_response(facts)

    async def run(self, request: web.Request) -> web.Response:
        asked = RunRequest.model_validate_json(await request.read())
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
            try:
                arguments = read_arguments(asked.stdin)
            except (ValueError, SyntaxError, RecursionError) as error:
                raise SandboxError(f"the arguments of {asked.function} cannot be read: {error}") from error
            return await program.call(asked.function, arguments)
        finally:
            self.in_use[key] -= 1
            await self._forget_the_oldest()

    async def _forget_the_oldest(self) -> None:
        idle = [key for key in self.programs if not self.in_use[key]]
        for key in idle[: max(len(self.programs) - self.caps.programs, 0)]:
            del self.in_use[key]
            await self.programs.pop(key).close()

    async def run_code(self, request: web.Request) -> web.Response:
        asked = FusionRequest.model_validate_json(await request.read())
        if asked.language != "python":
            return _problem(422, f"only Python runs here, not {asked.language}")
        answer = FusionAnswer.of(await self._result(asked.run_request()))
        return web.Response(text=answer.model_dump_json(), content_type="application/json")

    async def close(self, app: web.Application) -> None:
        for program in self.programs.values():
            await program.close()
        await self.sandbox.close()


def _problem(status: int, message: str) -> web.Response:
    return web.json_response({"error": message}, status=status)


async def serve(
    sandbox: Sandbox, host: str, port: int, token: str | None, ready: Callable[[int], None], caps: Caps = DEFAULT
) -> None:
    """Serve until cancelled. `ready` is called with the port, which matters if port 0 was asked for."""
    # A client that disconnects does not want the result: its run is ended.
    runner = web.AppRunner(make_app(sandbox, token=token, caps=caps), access_log=None, handler_cancellation=True)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        ready(runner.addresses[0][1])
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
