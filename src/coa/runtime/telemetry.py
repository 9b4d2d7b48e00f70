"""Sends ended runs to an OpenTelemetry endpoint while others go on (`RunConfig.otlp`).

A run that has ended is put into a queue, and a task beside the runs makes spans of it and sends them. Sending never
delays a run and never fails one: what the endpoint does not take is dropped and counted, and what is left at the end
has a few seconds. The user gets one warning at the first failure, and one with the number of lost runs at the end.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from coa.errors import CoaError
from coa.http import Patience
from coa.report import plural
from coa.trajectory import Trajectory, profile_of
from coa.trajectory.formats.otlp_endpoint import OtlpConfig, OtlpEndpoint, in_batches
from coa.trajectory.formats.otlp_export import to_spans

log = logging.getLogger(__name__)
Heard = Callable[[Trajectory], None]
_MOST_WAITING: Final = 4096
_AT_ONCE: Final = 64
_FLUSH_S: Final = 10.0
_PATIENCE: Final = Patience(attempts=3, timeout_s=10.0, connect_s=5.0, max_wait_s=10.0)


class _Ended(NamedTuple):
    run: Trajectory
    time_ns: int


def unheard(trajectory: Trajectory) -> None:
    """For runs that nobody wants to hear of."""


@asynccontextmanager
async def open_sender(
    config: OtlpConfig, *, patience: Patience | None = None, flush_s: float = _FLUSH_S, most: int = _MOST_WAITING
) -> AsyncIterator[Heard]:
    """What to call with each run that has ended. Without an endpoint, that does nothing."""
    if config.endpoint is None:
        yield unheard
        return
    sender = _Sender(config, OtlpEndpoint(config, patience=patience or _PATIENCE), most)
    working = asyncio.create_task(sender.work())
    try:
        yield sender.add
    finally:
        await sender.flush(flush_s)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await sender.close()


class _Sender:
    def __init__(self, config: OtlpConfig, endpoint: OtlpEndpoint, most: int) -> None:
        self._config, self._endpoint = config, endpoint
        self._waiting: asyncio.Queue[_Ended] = asyncio.Queue(maxsize=most)
        self._added = self._sent = 0
        self._warned = False

    def add(self, trajectory: Trajectory) -> None:
        self._added += 1
        try:
            self._waiting.put_nowait(_Ended(trajectory, time.time_ns()))
        except asyncio.QueueFull:
            self._warn(f"{self._endpoint.name} takes runs more slowly than they end")

    async def work(self) -> None:
        while True:
            ended = [await self._waiting.get()]
            while len(ended) < _AT_ONCE and not self._waiting.empty():
                ended.append(self._waiting.get_nowait())
            try:
                for packed in await asyncio.to_thread(self._packed, ended):
                    await self._endpoint.send(packed)
                self._sent += len(ended)
            except CoaError as error:
                self._warn(error.message + (f" ({error.hint})" if error.hint else ""))
            except Exception as error:  # whatever it is, the runs go on
                self._warn(f"{type(error).__name__}: {error}")
                log.debug("spans were not sent", exc_info=True)
            finally:
                for _ in ended:
                    self._waiting.task_done()

    async def flush(self, seconds: float) -> None:
        """Wait until everything is sent or dropped, but no longer than that."""
        try:
            async with asyncio.timeout(seconds):
                await self._waiting.join()
        except TimeoutError:
            log.info("%s did not take all runs in %g seconds", self._endpoint.name, seconds)

    async def close(self) -> None:
        await self._endpoint.close()
        if lost := self._added - self._sent:
            log.warning("%d of %s not sent to %s", lost, plural(self._added, "run"), self._endpoint.name)

    def _packed(self, ended: Sequence[_Ended]) -> list[bytes]:
        content = self._config.content
        spans = (to_spans(run, profile_of(run), ended_ns=time_ns, content=content) for run, time_ns in ended)
        return [self._endpoint.packed(batch) for batch in in_batches(spans)]

    def _warn(self, reason: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning("not all runs are sent: %s", reason)
