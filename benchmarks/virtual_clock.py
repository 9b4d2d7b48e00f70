"""An event loop whose clock jumps: an hour in which every task sleeps takes no time.

Code that runs in it is the code that runs everywhere. Only the clock differs: when nothing is ready, the loop moves its
time to the next timer instead of waiting for it. `time.monotonic` is the same clock meanwhile, because budgets and
deadlines compare it with the loop's timers. Work that is handed to a thread is done at once and takes no time, so that
the order of events is the same in every run.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple, Unpack

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


class _JumpingSelector(selectors.DefaultSelector):
    """Moves the clock on where a selector would wait."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if timeout is None:
            raise RuntimeError("all tasks wait and no timer is set: nothing can happen any more")
        self.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _JumpingSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Arguments]], Result], *args: *Arguments
    ) -> asyncio.Future[Result]:
        future: asyncio.Future[Result] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def run_virtually(work: Coroutine[Any, Any, Result]) -> tuple[Result, float]:
    """The result of a coroutine, and the seconds that it took on the virtual clock, which starts at 0."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop, real = runner.get_loop(), time.monotonic
        time.monotonic = loop.time
        try:
            return runner.run(work), loop.time()
        finally:
            time.monotonic = real
