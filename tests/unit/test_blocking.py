"""Blocking on a coroutine: with and without a loop around it, and with Ctrl-C in between."""

from __future__ import annotations

import asyncio
import signal
import threading

import pytest

from coa.blocking import run_blocking


async def three() -> int:
    await asyncio.sleep(0)
    return 3


async def fails() -> None:
    raise ValueError("broken")


def test_the_result_and_the_error_are_the_coroutines() -> None:
    assert run_blocking(three()) == 3
    with pytest.raises(ValueError, match="broken"):
        run_blocking(fails())


def test_inside_a_running_loop_as_well() -> None:
    async def notebook() -> int:
        with pytest.raises(ValueError, match="broken"):
            run_blocking(fails())
        return run_blocking(three())

    assert asyncio.run(notebook()) == 3


def interrupted(events: list[str]) -> None:
    """Work that gets a Ctrl-C as soon as it waits, and cleans up."""

    async def work() -> None:
        main = threading.main_thread().ident
        assert main is not None
        asyncio.get_running_loop().call_soon(signal.pthread_kill, main, signal.SIGINT)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            events.append("cleaned up")

    with pytest.raises(KeyboardInterrupt):
        run_blocking(work())


def test_ctrl_c_cancels_the_work_and_waits_for_its_end() -> None:
    events: list[str] = []
    interrupted(events)
    assert events == ["cleaned up"]


def test_ctrl_c_cancels_the_work_in_a_thread_too() -> None:
    events: list[str] = []
    # The loop of a notebook: asyncio.run would take the signal for itself.
    loop = asyncio.new_event_loop()

    async def notebook() -> None:
        interrupted(events)

    try:
        loop.run_until_complete(notebook())
    finally:
        loop.close()
    assert events == ["cleaned up"]
