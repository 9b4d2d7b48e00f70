"""Run a coroutine to its end from code that does not await, with or without an event loop around it.

The functions of the stages (`coa.distill.distill` and the like) block, so that a script needs no event loop. A notebook
has one running already, in which `asyncio.run` refuses to start: there the work gets its own thread and loop, and the
caller waits for it. Ctrl-C cancels the work in both cases, waits until it has cleaned up, and is then raised.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Coroutine
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result; its exceptions are raised here."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    return _run_in_thread(coroutine)


def _run_in_thread(coroutine: Coroutine[Any, Any, T]) -> T:
    go, begun = threading.Event(), threading.Event()
    future: Future[T] = Future()
    context = contextvars.copy_context()
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []

    async def work() -> T:
        task = asyncio.current_task()
        assert task is not None
        running.append((asyncio.get_running_loop(), task))
        begun.set()
        return await coroutine

    def body() -> None:
        go.wait()
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(context.run(asyncio.run, work()))
        except BaseException as error:
            future.set_exception(error)

    try:
        threading.Thread(target=body, name="coa").start()
        go.set()
        return future.result()
    except KeyboardInterrupt:
        # The signal may come at any moment: before the thread runs, in the middle, or when it has just ended.
        if future.cancel():
            coroutine.close()
            go.set()
        else:
            begun.wait()
            loop, task = running[0]
            with suppress(RuntimeError):  # the loop is closed already
                loop.call_soon_threadsafe(task.cancel)
            wait([future])
        raise
