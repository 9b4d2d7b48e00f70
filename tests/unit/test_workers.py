"""Work in child processes: killed when late, replaced when dead, and started with nothing of ours."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from coa import workers
from coa.workers import WorkerLost, WorkerPool

Found = TypeVar("Found")
MODULE = "support.odd_worker"


def use(do: Callable[[WorkerPool], Awaitable[Found]], *, timeout_s: float = 60.0, module: str = MODULE) -> Found:
    pool = WorkerPool(module, processes=1, timeout_s=timeout_s, memory_bytes=1 << 30)
    try:
        return asyncio.run(do(pool))  # type: ignore[arg-type]
    finally:
        pool.close()


async def lost(pool: WorkerPool, request: bytes) -> WorkerLost:
    with pytest.raises(WorkerLost) as caught:
        await pool.ask(request)
    return caught.value


def test_one_process_answers_many_requests_whatever_it_prints() -> None:
    async def do(pool: WorkerPool) -> None:
        body = os.urandom(3 << 20)
        assert await pool.ask(b"echo " + body) == body and await pool.ask(b"echo ") == b""
        assert await pool.ask(b"pid") == await pool.ask(b"pid") == str(pool.pids[0]).encode()

    use(do)


def test_many_ask_at_once_and_each_gets_its_own_answer() -> None:
    async def do(pool: WorkerPool) -> list[bytes]:
        return await asyncio.gather(*(pool.ask(b"echo %d" % n) for n in range(50)))

    assert use(do) == [b"%d" % n for n in range(50)]


def test_a_process_that_is_late_is_killed_and_replaced() -> None:
    async def do(pool: WorkerPool) -> None:
        before = await pool.ask(b"pid")
        late = await lost(pool, b"sleep")
        assert late.late and str(late) == "no answer within 1 seconds"
        assert await pool.ask(b"pid") != before
        with pytest.raises(ProcessLookupError):
            os.kill(int(before), 0)

    use(do, timeout_s=1.0)


def test_a_request_that_kills_its_process_is_lost_and_the_next_one_is_not() -> None:
    async def do(pool: WorkerPool) -> None:
        assert str(await lost(pool, b"exit 7")) == "the process ended with code 7"
        assert await pool.ask(b"echo on") == b"on"
        assert not (await lost(pool, b"exit 7")).late

    use(do)


def test_a_process_that_died_in_between_costs_no_request() -> None:
    async def do(pool: WorkerPool) -> bytes:
        os.kill(int(await pool.ask(b"pid")), 9)
        return await pool.ask(b"echo on")

    assert use(do) == b"on"


def test_memory_is_limited_and_files_cannot_be_written(tmp_path: Path) -> None:
    async def do(pool: WorkerPool) -> None:
        await lost(pool, b"swell")
        assert await pool.ask(b"write " + os.fsencode(tmp_path / "file")) == b"OSError"

    use(do)


def test_nothing_of_the_environment_is_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COA_API_KEY", "secret")
    names = set(use(lambda pool: pool.ask(b"environment")).decode().split("\n"))
    assert names - {"LD_LIBRARY_PATH", "PYTHONHOME"} == {"LC_ALL", "PYTHONPATH"}


def test_a_process_is_replaced_after_its_share_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_JOBS_EACH", 2)

    async def do(pool: WorkerPool) -> list[bytes]:
        return [await pool.ask(b"pid") for _ in range(4)]

    first, second, third, fourth = use(do)
    assert first == second and third == fourth and first != third


def test_one_who_is_cancelled_takes_the_process_along() -> None:
    async def do(pool: WorkerPool) -> None:
        before = await pool.ask(b"pid")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await pool.ask(b"sleep")
        assert await pool.ask(b"pid") != before

    use(do)


def test_closing_loses_the_requests_under_way_and_those_that_wait() -> None:
    async def do(pool: WorkerPool) -> None:
        (pid,) = [int(await pool.ask(b"pid"))]
        waiting = [asyncio.create_task(lost(pool, b"sleep")) for _ in range(3)]
        await asyncio.sleep(0.2)
        await asyncio.to_thread(pool.close)
        assert not any(found.late for found in await asyncio.gather(*waiting))
        assert str(await lost(pool, b"pid")) == "the pool was closed" and pool.pids == []
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    use(do)


@pytest.mark.parametrize("module", ["no_such_module", "support.papers"])
def test_a_module_that_cannot_work_is_said_not_to_start(module: str) -> None:
    assert "could not start" in str(use(lambda pool: lost(pool, b"echo"), module=module))


def test_a_process_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_START", "import time; time.sleep(600)")
    monkeypatch.setattr(workers, "_START_S", 0.2)
    assert "could not start: no answer within 0.2 seconds" in str(use(lambda pool: lost(pool, b"echo")))


def test_a_hanging_process_ends_itself_when_its_owner_is_gone() -> None:
    command = [sys.executable, "-c", "from coa.workers import serve; serve()", MODULE, str(1 << 30), "0.5"]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdin is not None and process.stdout is not None
    with process.stdin, process.stdout:
        assert process.stdout.read(8) == bytes(8)
        process.stdin.write(len(b"sleep").to_bytes(8, "big") + b"sleep")
        process.stdin.flush()
        assert process.wait(timeout=60) == -14  # SIGALRM, from the kernel: nobody read the answer or sent a signal
