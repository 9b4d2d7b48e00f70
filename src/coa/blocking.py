"""Run a coroutine to its end from code that does not await, with or without an event loop around it.

The functions of the stages (`coa.evaluate`, `coa.distill` and the like) block, so that a script needs no event loop. A
notebook has one running already, in which `asyncio.run` refuses to start: there the work gets its own thread and
loop, and the caller waits for it. Ctrl-C cancels the work in both cases, waits until it has cleaned up, and is raised.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result; its exceptions are raised here."""
    return _run_in_thread(coroutine) if _has_loop() else asyncio.run(coroutine)


def _has_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _run_in_thread(coroutine: Coroutine[Any, Any, T]) -> T:
    begun = threading.Event()
    loop: asyncio.AbstractEventLoop
    task: asyncio.Task[Any] | None = None

    async def work() -> T:
        nonlocal loop, task
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        begun.set()
        return await coroutine

    with ThreadPoolExecutor(1, thread_name_prefix="coa") as pool:
        future = pool.submit(contextvars.copy_context().run, asyncio.run, work())
        try:
            return future.result()
        except KeyboardInterrupt:
            begun.wait()
            if task is not None:
                with suppress(RuntimeError):  # the loop is closed: the work had just ended
                    loop.call_soon_threadsafe(task.cancel)
            raise  # leaving the pool waits for the thread
