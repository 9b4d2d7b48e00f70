"""Several servers of one model, used as one model.

A new run goes to the least busy server and stays there, because that server has the run's prefix in its cache. The run
carries a `Home` in its `Context`, in which the pool notes the server. This needs no table of runs and costs nothing
when a run ends. Calls without a home, such as those of a judge, go to the least busy server each.

A server that does not answer is left out, and the call goes to another one, which becomes the run's new home. A task in
the background connects to the server again, at once and then after pauses that double, and lets it in when it serves
the same model as the others. So a dropped connection costs a server a few milliseconds, and no run waits for
a server that is known to be down. Only when all are down does a call wait, as long as it would for a single server, and
then the error names each of them.

Refusals (a wrong key, a bad request) would be the same everywhere and end the call at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from coa.errors import ModelError
from coa.http import Patience, Transient, pause_s, retried
from coa.models.base import Constrained, Context, Generation, Model, OnText, Sampling
from coa.models.server import ModelUnserved
from coa.trajectory import Tokenizer
from coa.trajectory.grammar import Grammar

log = logging.getLogger(__name__)

Connect = Callable[[Patience], Awaitable[Model]]
"""Opens the model of one server. It is called again to find out whether a server that was down is back."""


@dataclass(eq=False, slots=True)
class PooledServer:
    """One server of a pool."""

    name: str
    """Its address, without a password."""
    connect: Connect
    model: Model | None = None
    """None until it has answered for the first time."""
    up: bool = False
    calls: int = 0
    """Number of calls that it is working on."""
    turn: int = 0
    """Number of the last choice that fell on it; decides between servers that are equally busy."""
    failures: int = 0
    """Failures since it last wrote something."""
    trouble: ModelError | None = None
    """Why it did not answer the last time that it did not."""


class ModelPool:
    """The same model on several servers. Call `open` before anything else."""

    constrained_by_default = False

    def __init__(self, servers: Sequence[PooledServer], patience: Patience) -> None:
        self._servers = tuple(servers)
        self._patience = patience
        self._once = replace(patience, attempts=1)
        # A round asks each server once, with its own time limit.
        self._rounds = replace(patience, timeout_s=(patience.timeout_s + 1) * len(self._servers))
        self._choices = 0
        self._returns: dict[PooledServer, asyncio.Task[None]] = {}
        """Tasks that wait for servers to come back."""
        self._model: Model | None = None
        """The model of the server that answered first, with which all others are compared."""
        self._from = ""
        """Address of that server."""

    @property
    def name(self) -> str:
        return self._opened.name

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self._opened.tokenizer

    @property
    def unconstrainable(self) -> str | None:
        model = self._opened
        return model.unconstrainable if isinstance(model, Constrained) else f"{model.name} takes no grammar"

    @property
    def _opened(self) -> Model:
        assert self._model is not None, "the pool is not open"
        return self._model

    async def open(self) -> None:
        """Connect to all servers at once. Those that do not answer are left out for now; one has to."""
        try:
            await retried(self._title, self._connect_all, self._patience, failure=ModelUnserved)
        except BaseException:
            await self.close()
            raise
        for server in self._servers:
            if not server.up:
                self._await_return(server)

    async def generate(
        self, context: Context, *, stop: Sequence[str], sampling: Sampling, on_text: OnText = None,
        grammar: Grammar | None = None,
    ) -> Generation:  # fmt: skip
        options: dict[str, Any] = {"stop": stop, "sampling": sampling, "on_text": on_text}
        if grammar is not None:
            options["grammar"] = grammar
        server = self._choose(context)
        generation = await self._ask(server, context, options) if server is not None else None
        if generation is not None:
            return generation

        async def ask_each() -> Generation:
            tried: set[PooledServer] = set()
            while (server := self._choose(context, tried)) is not None:
                tried.add(server)
                if (generation := await self._ask(server, context, options)) is not None:
                    return generation
            raise self._all_down()

        return await retried(self._title, ask_each, self._rounds, failure=ModelUnserved)

    async def close(self) -> None:
        tasks = list(self._returns.values())
        self._returns.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for server in self._servers:
            if server.model is not None:
                await server.model.close()

    @property
    def _title(self) -> str:
        return f"the pool of {len(self._servers)} model servers"

    def _choose(self, context: Context, tried: Collection[PooledServer] = ()) -> PooledServer | None:
        """The server of the run, or else the least busy one; None if all are down or have been tried."""
        home = context.home
        if home is not None:
            server = home.server
            if isinstance(server, PooledServer) and server.up and server not in tried:
                return server
        free = [server for server in self._servers if server.up and server not in tried]
        if not free:
            return None
        server = min(free, key=lambda server: (server.calls, server.turn))
        self._choices += 1
        server.turn = self._choices
        if home is not None:
            home.server = server
        return server

    async def _ask(self, server: PooledServer, context: Context, options: dict[str, Any]) -> Generation | None:
        """What the server writes; None if it does not answer, and is left out from now on."""
        assert server.model is not None, "it is up"
        failures = server.failures
        server.calls += 1
        try:
            generation = await server.model.generate(context, **options)
        except ModelUnserved as error:
            if not _is_passing(error):
                raise
            if server.failures == failures:  # many calls on their way to a server that goes down are one failure
                server.failures += 1
            self._leave_out(server, error)
            return None
        finally:
            server.calls -= 1
        server.failures = 0
        return generation

    def _leave_out(self, server: PooledServer, error: ModelUnserved) -> None:
        server.up, server.trouble = False, error
        self._await_return(server)

    def _all_down(self) -> Transient:
        known = [server.trouble for server in self._servers if server.trouble is not None]
        waits = [wait for error in known if (wait := _asked_wait_s(error)) is not None]
        return Transient("; ".join(error.message for error in known), min(waits, default=None))

    # ---- servers come and go

    def _await_return(self, server: PooledServer) -> None:
        if server not in self._returns:
            self._returns[server] = asyncio.create_task(self._return(server))

    async def _return(self, server: PooledServer) -> None:
        """Connect to the server again and again until it can be used, and report what becomes of it."""
        said = ""
        try:
            while not server.up:
                wait = min(_asked_wait_s(server.trouble) or 0.0, self._patience.max_wait_s)
                pause = pause_s(self._patience, server.failures - 1) if server.failures > 1 else 0.0
                await asyncio.sleep(max(pause, wait))
                try:
                    await self._admit(server)
                except ModelError as error:
                    server.failures, server.trouble = server.failures + 1, error
                    if error.message != said:
                        said = error.message
                        log.warning("%s. This server is left out for now.", said)
            if said:
                log.warning("%s is back", server.name)
        finally:
            self._returns.pop(server, None)

    async def _connect_all(self) -> None:
        """Connect to each server once; a server that can never be part of this pool is an error."""
        results = await asyncio.gather(*map(self._admit, self._servers), return_exceptions=True)
        for server, result in zip(self._servers, results, strict=True):
            if isinstance(result, ModelError) and _is_passing(result):
                server.trouble = result
                server.failures = 1
            elif isinstance(result, BaseException):
                raise result
        if not any(server.up for server in self._servers):
            raise self._all_down()

    async def _admit(self, server: PooledServer) -> None:
        """Connect to a server, see that it serves what the others serve, and use it from now on."""
        if server.up:
            return
        model = await server.connect(self._once)
        try:
            if self._model is None:
                self._model, self._from = model, server.name
            else:
                _refuse_difference(self._from, self._model, server.name, model)
        except BaseException:
            await model.close()
            raise
        if server.model is None:
            server.model = model
        else:
            await model.close()  # calls may still be under way on the connections of the old one
        server.up = True


def _is_passing(error: ModelError | None) -> bool:
    """Whether another server may answer where this one did not: it was not reached, broke off, or is overloaded."""
    return isinstance(error, ModelUnserved) and error.error == "service" and error.status is None


def _asked_wait_s(error: ModelError | None) -> float | None:
    """The pause that the server asked for when it refused, if it did."""
    cause = error.__cause__ if error is not None else None
    return cause.wait_s if isinstance(cause, Transient) else None


def _refuse_difference(first: str, model: Model, second: str, other: Model) -> None:
    """All servers of a pool have to serve the same model, as far as they say."""
    for what, one, two in (
        ("model", repr(model.name), repr(other.name)),
        ("mode", _mode(model), _mode(other)),
        ("tokenizer", _fingerprint(model), _fingerprint(other)),
    ):
        if one != two:
            raise ModelError(
                f"the servers of a pool must serve the same {what}: {first} serves {one}, {second} serves {two}",
                hint=_HINTS[what],
            )


_HINTS: Final = {
    "model": "start them with the same model and the same name (--served-model-name of vLLM and SGLang, --alias of "
    "llama.cpp), or choose one that all of them serve with --model-name NAME",
    "mode": "use --set mode=chat, or add --set tokenizer=PLACE so that all of them can run in token mode",
    "tokenizer": "start them with the same model, or use one server",
}


def _mode(model: Model) -> str:
    return "token ids" if model.tokenizer is not None else "a chat"


def _fingerprint(model: Model) -> str:
    return model.tokenizer.fingerprint if model.tokenizer is not None else "none"
