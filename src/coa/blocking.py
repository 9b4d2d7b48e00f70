"""Async work for callers without an event loop, and for notebooks, where a loop is running already."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. Ctrl-C cancels the work, lets it clean up, and then raises `KeyboardInterrupt`.

    Where an event loop runs in this thread, as in a notebook, the work gets a thread and a loop of its own.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    done: Future[T] = Future()
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = Future()

    async def main() -> T:
        task = asyncio.ensure_future(work)
        started.set_result((asyncio.get_running_loop(), task))
        return await task

    def target() -> None:
        try:
            done.set_result(asyncio.run(main()))
        except BaseException as error:
            done.set_exception(error)

    Thread(target=target, name="coa", daemon=True).start()
    try:
        return done.result()
    except KeyboardInterrupt:
        loop, task = started.result()
        loop.call_soon_threadsafe(task.cancel)
        done.exception()  # waits until the work has cleaned up
        raise
