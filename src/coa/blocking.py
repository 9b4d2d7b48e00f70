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
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, TypeVar

T = TypeVar("T")
_START_S: Final = 10.0
"""How long a thread may take to start before an interrupted caller stops waiting for it."""


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
    done: Future[T] = Future()
    begun = threading.Event()
    loop: asyncio.AbstractEventLoop
    task: asyncio.Task[Any] | None = None

    async def work() -> T:
        nonlocal loop, task
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        begun.set()
        return await coroutine

    def target() -> None:
        try:
            done.set_result(context.run(asyncio.run, work()))
        except BaseException as error:
            done.set_exception(error)

    context = contextvars.copy_context()
    thread = threading.Thread(target=target, name="coa", daemon=True)
    try:
        thread.start()  # inside: Ctrl-C may come while it starts
        return done.result()
    except KeyboardInterrupt:
        if begun.wait(_START_S) and task is not None:
            with suppress(RuntimeError):  # the loop is closed: the work had just ended
                loop.call_soon_threadsafe(task.cancel)
            done.exception()  # waits until the work has cleaned up
        raise
