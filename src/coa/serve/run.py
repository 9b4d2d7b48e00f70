"""One served run: its events so far, those who follow it, and its end."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from enum import StrEnum

from coa.runtime import Chain
from coa.serve.caller import Caller
from coa.serve.events import RunEnded, RunEvent
from coa.serve.request import ClientCall, RunRequest
from coa.trajectory import Stop, Trajectory, Usage


class RunStatus(StrEnum):
    QUEUED = "queued"
    """It waits for a free place."""
    RUNNING = "running"
    WAITING = "waiting"
    """It waits for the result of a client's tool."""
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def over(self) -> bool:
        return self not in (RunStatus.QUEUED, RunStatus.RUNNING)


_STATUS = {Stop.FAILED: RunStatus.FAILED, Stop.INTERRUPTED: RunStatus.CANCELLED, Stop.WAITING: RunStatus.WAITING}


class Run:
    def __init__(
        self,
        request: RunRequest,
        caller: Caller,
        heartbeat_s: float,
        conversation: str | None,
        render: Callable[[Run], bytes] | None,
    ) -> None:
        self.id = secrets.token_hex(16)
        self.conversation = conversation or self.id
        """Id of the first run of its conversation."""
        self.request, self.caller = request, caller
        self.created = self.updated = time.time()
        self.began = time.monotonic()
        self.status = RunStatus.QUEUED
        self.events: list[RunEvent] = []
        self.first_event_s: float | None = None
        """Time from the request to the first event."""
        self.trajectory: Trajectory | None = None
        self.call: ClientCall | None = None
        """The call that the client has to make, if the run waits for one."""
        self.render = render
        """Makes what the protocol wants to have stored with the run, as JSON, when the run is over."""
        self.chain: Chain | None = None
        self.task: asyncio.Task[None] | None = None
        self._heartbeat_s = heartbeat_s
        self._waiters: list[asyncio.Future[None]] = []
        self._over = asyncio.Event()

    @property
    def usage(self) -> Usage:
        """What it took so far."""
        if self.trajectory is not None:
            return self.trajectory.usage
        return self.chain.usage if self.chain is not None else Usage()

    def emit(self, event: RunEvent) -> None:
        if not self.events:
            self.first_event_s = time.monotonic() - self.began
        self.events.append(event)
        self.updated = time.time()
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                _resolve(waiter)

    def end(self, trajectory: Trajectory, call: ClientCall | None) -> None:
        """Before the event `RunEnded`."""
        self.trajectory, self.call = trajectory, call
        self.status = _STATUS.get(trajectory.stop, RunStatus.DONE)

    def close(self) -> None:
        """Nothing more will happen."""
        if self.trajectory is not None:
            self.emit(RunEnded(self.trajectory))
        # The run may stay in memory for a while. The trajectory has what is worth keeping of it.
        self.chain = self.render = None
        self.request = replace(self.request, attachments={})
        self._over.set()

    async def follow(self, start: int = 0) -> AsyncGenerator[list[RunEvent], None]:
        """The events from number `start` on, as many at a time as there are. An empty list is a heartbeat."""
        at, events = start, self.events
        pulse = _Pulse(self._heartbeat_s)
        try:
            while True:
                if len(events) > at:
                    batch = events[at:]
                    at += len(batch)
                    yield batch
                    if isinstance(batch[-1], RunEnded):
                        return
                elif self._over.is_set():
                    return
                else:
                    self._waiters.append(waiter := pulse.wait())
                    await waiter
                    if len(events) == at and not self._over.is_set():
                        self._waiters.remove(waiter)
                        yield []
        finally:
            pulse.stop()

    async def wait(self) -> Trajectory:
        """The trajectory, once the run is over."""
        await self._over.wait()
        assert self.trajectory is not None
        return self.trajectory

    async def cancel(self) -> None:
        """Stop the run if it is not over, and wait until what there is of it has been kept."""
        if self.task is not None and not self.task.done():
            await asyncio.sleep(0)  # a task that is cancelled before its first step would never come to its `finally`
            self.task.cancel()
            await asyncio.wait({self.task})


class _Pulse:
    """Ends a wait that took too long. One timer serves all waits, because a run may have thousands of them a second:
    when it fires too early for the present wait, it is set again."""

    def __init__(self, after_s: float) -> None:
        self._loop, self._after_s = asyncio.get_running_loop(), after_s
        self._since = self._loop.time()
        self._timer = self._loop.call_later(after_s, self._fire)
        self._waiter: asyncio.Future[None] | None = None

    def wait(self) -> asyncio.Future[None]:
        """Resolved by whoever has news, or by the timer."""
        self._since = self._loop.time()
        self._waiter = waiter = self._loop.create_future()
        return waiter

    def stop(self) -> None:
        self._timer.cancel()

    def _fire(self) -> None:
        left = self._since + self._after_s - self._loop.time()
        if left <= 0:
            left = self._after_s
            if self._waiter is not None:
                _resolve(self._waiter)
        self._timer = self._loop.call_later(left, self._fire)


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
