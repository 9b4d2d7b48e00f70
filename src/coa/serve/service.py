"""The service behind every protocol: it admits runs, executes them, and keeps what became of them.

A protocol turns a request into a `RunRequest`, calls `start`, and renders the events of the `Run` that it gets.
Whatever the protocol, a run waits for a free place, is cancelled when its client goes away, is written to the
trajectories of `--out`, counted in the metrics, and stored if the client wants to come back to it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from coa.errors import CoaError
from coa.models.base import Model
from coa.progress import Progress
from coa.runtime import Chain
from coa.runtime.live import LiveFeed, live_feed
from coa.runtime.telemetry import unheard
from coa.serve.agents import ServedAgent, open_agents
from coa.serve.api_error import ApiError
from coa.serve.caller import Caller
from coa.serve.config import ServeConfig
from coa.serve.events import ItemBegan, ItemDone, ItemKind, ToolReturned
from coa.serve.limits import KeyLimits
from coa.serve.metrics import Metrics
from coa.serve.narrator import Narrator
from coa.serve.request import ClientCall, RunRequest, Suspended, setting_for
from coa.serve.run import Run, RunStatus
from coa.serve.store import Store, StoredRun, trajectory_line
from coa.serve.waiting import WaitingRuns
from coa.tools import Tool
from coa.trajectory import Failure, FailureSite, JsonlWriter, Limits, Stop, Trajectory
from coa.trajectory.store import to_append
from coa.trajectory.types import FrozenDict

log = logging.getLogger(__name__)
_REMEMBERED_RUNS: Final = 512
_REMEMBERED_S: Final = 600.0
"""How many runs, and for how long, stay in memory after their end, for a client that connects again."""
_SWEEP_S: Final = 60.0
_CHARACTERS_PER_TOKEN: Final = 20
"""More than any tokenizer puts into a token on average."""
CALL_PREFIX: Final = "call_"


@asynccontextmanager
async def open_service(
    config: ServeConfig,
    *,
    out: str | Path | None = None,
    models: Mapping[str, Model] | None = None,
    tools: Mapping[str, Mapping[str, Tool]] | None = None,
    progress: Progress | None = None,
) -> AsyncIterator[Service]:
    """Opens agents, store and the file of trajectories; at the end cancels what still runs and closes everything."""
    async with AsyncExitStack() as stack:
        store = Store(config.state_folder(), days=config.store_days, most_bytes=config.store_bytes)
        stack.callback(store.close)
        writer = stack.enter_context(JsonlWriter(to_append(out))) if out is not None else None
        agents = await stack.enter_async_context(open_agents(config, models=models, tools=tools, progress=progress))
        feed = stack.enter_context(live_feed(to_append(out).parent)) if out is not None else None
        service = Service(config, agents, store, writer, feed)
        sweeper = asyncio.create_task(service.sweep())
        try:
            yield service
        finally:
            sweeper.cancel()
            await asyncio.gather(sweeper, return_exceptions=True)
            await service.close()


class Service:
    def __init__(
        self,
        config: ServeConfig,
        agents: Mapping[str, ServedAgent],
        store: Store,
        writer: JsonlWriter | None,
        feed: LiveFeed | None = None,
    ) -> None:
        self.config, self.agents, self.store = config, agents, store
        self.metrics = Metrics()
        self.metrics.watch_queue(lambda: self.queued)
        self.limits = KeyLimits.of(config)
        self.draining = False
        """Whether the server is about to stop and takes no more runs."""
        self._writer, self._feed = writer, feed
        self._beside: set[asyncio.Task[None]] = set()
        self._places = asyncio.Semaphore(config.max_runs)
        self._active: dict[str, Run] = {}
        self._recent: OrderedDict[str, tuple[float, Run]] = OrderedDict()
        self._waiting = WaitingRuns(self._give_up)

    # ---- what protocols call

    def agent(self, name: str) -> ServedAgent:
        if name not in self.agents:
            names = ", ".join(self.agents)
            raise ApiError(
                404, f"there is no model {name!r} here; this server has: {names}", code="model_not_found", param="model"
            )
        return self.agents[name]

    async def start(self, request: RunRequest, caller: Caller, *, render: Callable[[Run], bytes] | None = None) -> Run:
        """Admit a run and begin it. Raises `ApiError`: 404 without such an agent, 429 if the server is full.

        `render` makes what is stored with the run, and found again by `store.get`, when the run is over.
        """
        agent = self.agent(request.agent)
        setting, names = setting_for(request, replace(agent.setting, live=self._feed))
        if self.draining:
            raise ApiError(503, "the server is shutting down", code="shutting_down", retry_after_s=5)
        if len(self._active) >= self.config.max_runs + self.config.max_queue:
            self.metrics.run_refused(request.agent, request.protocol)
            raise ApiError(
                429, "the server has no free place and its queue is full; try again later",
                code="server_busy", retry_after_s=max(1.0, self.config.heartbeat_s / 2),
            )  # fmt: skip
        _refuse_too_long(request, setting.limits or setting.profile.limits)
        run = Run(request, caller, self.config.heartbeat_s, self._conversation(request, caller), render)
        narrator = Narrator(setting.profile, names, run.emit, setting.tools)
        setting = replace(setting, finished=unheard)  # `_write` reports the run when it is over
        try:
            if request.resume is not None and request.result is not None:
                chain = Chain.resume(request.resume.trajectory, request.result, setting, listen=narrator)
            else:
                task = request.task.model_copy(update={"id": run.id})
                chain = Chain(task, setting, listen=narrator)
        except CoaError as error:
            raise ApiError(400, str(error), code="invalid_request") from error
        try:
            self.limits.admit(caller)
        except ApiError:
            self.metrics.run_refused(request.agent, request.protocol)
            raise
        run.chain = chain
        self._active[run.id] = run
        run.task = asyncio.create_task(self._execute(run, chain, narrator, names))
        return run

    async def keep_early(self, run: Run, body: bytes) -> None:
        """Store what a client shall find if this process dies before the run is over. A run that cannot be stored is
        cancelled: nobody would learn its id."""
        assert run.chain is not None
        try:
            self.store.put(_stored(run, run.chain.trajectory(), body))
        except BaseException:
            await run.cancel()
            raise

    def running(self, run_id: str, caller: Caller) -> Run | None:
        """A run of the caller's that is active, or that ended a short while ago."""
        run = self._active.get(run_id) or (self._recent[run_id][1] if run_id in self._recent else None)
        return run if run is not None and run.caller == caller else None

    def runs(self, caller: Caller) -> list[Run]:
        """The runs of the caller's that are not over, the oldest first."""
        return [run for run in self._active.values() if run.caller == caller]

    def suspended(self, call_id: str, caller: Caller) -> Suspended | None:
        """The run that waits for the result of this call, or got it a short while ago."""
        if (held := self._waiting.find(call_id, caller)) is not None:
            return held
        stored = self.store.by_call(call_id, caller.key)
        if stored is None:
            return None
        return Suspended(call_id, stored.id, stored.agent, stored.trajectory, stored.conversation)

    @asynccontextmanager
    async def streaming(self, run: Run) -> AsyncIterator[None]:
        """While the client listens: one that goes away takes its run with it, unless that is a background run."""
        try:
            async with asyncio.timeout(self.config.stream_timeout_s):
                yield
        finally:
            if not run.status.over and not run.request.background:
                await asyncio.shield(asyncio.ensure_future(run.cancel()))

    def forget(self, run_id: str, caller: Caller) -> bool:
        """Delete a run from the store; whether there was one."""
        if self.running(run_id, caller) is not None:
            self._recent.pop(run_id, None)
        return self.store.delete(run_id, caller.key)

    def accompany(self, work: Coroutine[Any, Any, None]) -> None:
        """Let this go on beside the runs. It is cancelled when the service closes."""
        task = asyncio.create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    @property
    def queued(self) -> int:
        return sum(run.status is RunStatus.QUEUED for run in self._active.values())

    @property
    def active(self) -> int:
        """Runs that are running or queued."""
        return len(self._active)

    # ---- one run

    def _conversation(self, request: RunRequest, caller: Caller) -> str | None:
        if request.resume is not None:
            return request.resume.conversation
        if request.previous is None:
            return None
        if (before := self.running(request.previous, caller)) is not None:
            return before.conversation
        stored = self.store.get(request.previous, caller.key)
        return stored.conversation if stored is not None else None

    async def _execute(self, run: Run, chain: Chain, narrator: Narrator, names: Mapping[str, str]) -> None:
        trajectory: Trajectory | None = None
        request, begun = run.request, False
        try:
            async with self._places:
                run.status, begun = RunStatus.RUNNING, True
                self.metrics.run_started(request.agent, request.protocol)
                trajectory = await chain.run()
        except asyncio.CancelledError:
            trajectory = chain.trajectory()  # it was stopped on purpose, and this task ends by itself
        except Exception as error:
            log.exception("run %s failed", run.id)
            failure = Failure(site=FailureSite.RUNTIME, message=f"{type(error).__name__}: {error}")
            trajectory = chain.trajectory().model_copy(update={"stop": Stop.FAILED, "failure": failure})
        finally:
            try:
                self._finish(run, narrator, trajectory or chain.trajectory(), names)
                if begun:
                    self._measure(run)
            finally:
                chain.leave_feed()
                run.close()
                self._active.pop(run.id, None)
                self._remember(run)
                self.limits.release(run.caller)

    def _finish(self, run: Run, narrator: Narrator, trajectory: Trajectory, names: Mapping[str, str]) -> None:
        request = run.request
        served = {"agent": request.agent, "protocol": request.protocol, "run": run.id, "conversation": run.conversation}
        if request.metadata:
            served["metadata"] = dict(request.metadata)  # type: ignore[assignment]
        trajectory = trajectory.model_copy(update={"meta": FrozenDict({**trajectory.meta, "served": served})})
        call = None
        if trajectory.stop is Stop.WAITING:
            call = _call_of(run, trajectory, names)
            held = Suspended(call.id, run.id, request.agent, trajectory, run.conversation)
            self._waiting.add(held, run.caller)
        narrator.conclude(trajectory)
        run.end(trajectory, call)
        if request.resume is not None:
            self._waiting.continued(request.resume.call)
        self._keep(run, trajectory)
        if trajectory.stop is not Stop.WAITING:
            self._write(trajectory)
        before = request.resume.trajectory.usage.total_tokens if request.resume is not None else 0
        self.limits.spent(run.caller, trajectory.usage.total_tokens - before)

    def _write(self, trajectory: Trajectory) -> None:
        """Keep a run that is over in the file of `--out`, and report it to the endpoint of its agent."""
        served = trajectory.meta.get("served")
        of = served if isinstance(served, dict) else {}
        if self._writer is not None:
            try:
                self._writer.write(trajectory)
            except CoaError as error:
                log.error("the run %s could not be written: %s", of.get("run"), error)
        if (agent := self.agents.get(str(of.get("agent")))) is not None:
            agent.setting.finished(trajectory)

    def _measure(self, run: Run) -> None:
        assert run.trajectory is not None
        request = run.request
        before = request.resume.trajectory.usage if request.resume is not None else None
        seconds = time.monotonic() - run.began
        self.metrics.run_ended(run.trajectory, request.agent, request.protocol, seconds, before=before)
        if run.first_event_s is not None:
            self.metrics.first_event(request.agent, request.protocol, run.first_event_s)
        began = {event.item: event for event in run.events if isinstance(event, ItemBegan)}
        for event in run.events:
            if isinstance(event, ToolReturned) and began[event.item].kind is ItemKind.TOOL:
                ok, took = bool(event.step.meta.get("ok", True)), event.step.meta.get("seconds")
                took_s = float(took) if isinstance(took, int | float) else 0.0
                self.metrics.tool_called(began[event.item].agent, ok, took_s)

    def _keep(self, run: Run, trajectory: Trajectory) -> None:
        """Store the run before its client learns that it is over, so that a follow-up finds it."""
        try:
            if run.request.resume is not None:
                self.store.continued(run.request.resume.run)
            if run.request.store:
                self.store.put(_stored(run, trajectory, run.render(run) if run.render else b"{}"))
        except Exception:
            log.exception("the run %s could not be stored", run.id)

    def _remember(self, run: Run) -> None:
        self._recent[run.id] = (time.monotonic(), run)
        if len(self._recent) > _REMEMBERED_RUNS:
            self._recent.popitem(last=False)

    # ---- upkeep and the end

    async def sweep(self) -> None:
        """Forget what is too old, for as long as the server runs."""
        while True:
            try:
                self._sweep_once()
            except Exception:
                log.exception("stored responses could not be tidied up")
            await asyncio.sleep(_SWEEP_S)

    def _sweep_once(self) -> None:
        now = time.monotonic()
        while self._recent and next(iter(self._recent.values()))[0] < now - _REMEMBERED_S:
            self._recent.popitem(last=False)
        self._waiting.expire()
        for run in self.store.expire():
            if run.status == RunStatus.WAITING:
                self._abandon(run.trajectory)

    def _give_up(self, run: Suspended, caller: Caller) -> None:
        if self.store.by_call(run.call, caller.key) is None:
            self._abandon(run.trajectory)

    def _abandon(self, trajectory: Trajectory) -> None:
        """Nobody will continue this run: it is written as it is."""
        self._write(trajectory)

    async def drain(self, seconds: float) -> None:
        """Take no more runs, let those that run finish, and cancel the rest after that time."""
        self.draining = True
        tasks = [run.task for run in self._active.values() if run.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        await asyncio.gather(*(run.cancel() for run in list(self._active.values())))

    async def close(self) -> None:
        await self.drain(0)
        beside = [*self._beside]
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        self._waiting.clear()


def _call_of(run: Run, trajectory: Trajectory, names: Mapping[str, str]) -> ClientCall:
    tag = trajectory.steps[-1].agent
    done = next(event for event in reversed(run.events) if isinstance(event, ItemDone) and event.arguments is not None)
    return ClientCall(CALL_PREFIX + secrets.token_hex(12), names.get(tag, tag), dict(done.arguments or {}))


def _refuse_too_long(request: RunRequest, limits: Limits) -> None:
    """A prompt that can never fit is refused before anybody tokenises it, which takes time for long texts."""
    length = len(request.task.question) + sum(len(turn.content) for turn in request.task.conversation)
    most = limits.context_tokens * _CHARACTERS_PER_TOKEN
    if length > most:
        raise ApiError(
            400,
            f"the input has {length:,} characters; the context of this agent has room for {most:,} at most",
            code="context_length_exceeded",
        )


def _stored(run: Run, trajectory: Trajectory, body: bytes) -> StoredRun:
    request = run.request
    return StoredRun(
        run.id, run.caller.key, request.protocol, request.agent, run.created, str(run.status), request.previous,
        run.conversation, request.task.question, run.call.id if run.call is not None else None, body,
        trajectory_line(trajectory),
    )  # fmt: skip


__all__ = [
    "Caller", "ClientCall", "Run", "RunRequest", "RunStatus", "Service", "Suspended", "open_service",
]  # fmt: skip
