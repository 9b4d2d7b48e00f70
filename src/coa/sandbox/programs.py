"""A program that is compiled once in a warm interpreter, and run for many tests.

Each test is a fork of its own. Tests that run at the same time do so in different cells, behind walls of their own.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from coa.sandbox.base import CodeVerdict, ProgramLimits, ProgramResult, SandboxError
from coa.sandbox.cells import GRACE_S, Cell, last_line, result_of, with_value, written_arguments
from coa.sandbox.streams import Capture, memory_file, to_bytes
from coa.sandbox.zygote import Zygote

MOST_LANES: Final = 4
"""Cells of one program: each holds a process for as long as the program is kept."""


class WarmProgram:
    """Has one cell, and more while tests are asked for at once and nobody else wants the turns."""

    def __init__(self, zygote: Zygote, job: bytes, limits: ProgramLimits, turns: asyncio.Semaphore) -> None:
        self._zygote, self._job, self._limits, self._turns = zygote, job, limits, turns
        self._lanes: list[_Lane] = []

    @property
    def compile_error(self) -> ProgramResult | None:
        return next((lane.broken for lane in self._lanes if lane.broken is not None), None)

    async def run(self, stdin: bytes | str = b"") -> ProgramResult:
        return await self._test(to_bytes(stdin), {})

    async def call(self, function: str, arguments: Sequence[object]) -> ProgramResult:
        return await self._test(written_arguments(arguments), {"function": function})

    async def holds(self, assertions: str) -> ProgramResult:
        return await self._test(b"", {"assertions": assertions})

    async def close(self) -> None:
        for lane in self._lanes:
            await lane.close()

    async def _test(self, stdin: bytes, what: Mapping[str, str]) -> ProgramResult:
        if (broken := self.compile_error) is not None:
            return broken
        lane = min(self._lanes, key=lambda lane: lane.asked, default=None)
        # A further cell costs as much as a few tests: worth it only for a turn that would stay unused.
        if lane is None or (lane.asked and len(self._lanes) < MOST_LANES and not self._turns.locked()):
            lane = _Lane(self._zygote, self._job, self._limits, self._turns)
            self._lanes.append(lane)
        return await lane.test(stdin, what)


class _Lane:
    """Tests one after the other in one cell; one that ends the cell costs a new one for the next."""

    def __init__(self, zygote: Zygote, job: bytes, limits: ProgramLimits, turns: asyncio.Semaphore) -> None:
        self._zygote, self._job, self._limits, self._turns = zygote, job, limits, turns
        self._cell: Cell | None = None
        self._one_at_a_time = asyncio.Lock()
        self.asked = 0
        """Tests that run or wait here."""
        self.broken: ProgramResult | None = None

    async def close(self) -> None:
        async with self._one_at_a_time:  # a test that runs comes to its end first
            await self._shut()

    async def _shut(self) -> None:
        cell, self._cell = self._cell, None
        if cell is not None:
            await cell.__aexit__()

    async def test(self, stdin: bytes, what: Mapping[str, str]) -> ProgramResult:
        self.asked += 1
        try:
            async with self._one_at_a_time, self._turns:
                return await self._in_turn(stdin, what)
        finally:
            self.asked -= 1

    async def _in_turn(self, stdin: bytes, what: Mapping[str, str]) -> ProgramResult:
        try:
            cell = await self._open()
            if cell is None:
                return self.broken or ProgramResult(CodeVerdict.SANDBOX_ERROR, note="the program has no cell")
            return await self._test_in(cell, stdin, what)
        except (SandboxError, OSError) as error:
            await self._shut()
            return ProgramResult(CodeVerdict.SANDBOX_ERROR, note=str(error))
        except BaseException:  # cancelled in mid-test: the cell is in no known state
            await self._shut()
            raise

    async def _open(self) -> Cell | None:
        """None if the program cannot be compiled, or not within the limits; `broken` tells."""
        if self._cell is not None or self.broken is not None:
            return self._cell
        self._cell = cell = await Cell(self._zygote, self._job, b"", self._limits, timed=False).__aenter__()
        try:
            said = await self._hear(cell, self._limits.wall_s + GRACE_S)
        except TimeoutError:
            cell.kill("wall")
            said = None
        if said is not None and said["event"] == "ready":
            return cell
        end = await cell.ended(GRACE_S)
        await cell.err.finish(GRACE_S)
        compiling = said is None and (end.get("reason") or os.WIFSIGNALED(end.get("status", 0)))
        if "error" in end or not (compiling or (said is not None and said["event"] == "compile_error")):
            why = end.get("error") or (said or {}).get("reason") or last_line(cell.err)
            raise SandboxError(f"a program could not be walled in: {why}")
        self.broken = result_of(end, self._limits, cell.out, cell.err, compiled=False)
        await self._shut()
        return None

    async def _hear(self, cell: Cell, timeout_s: float) -> dict[str, Any] | None:
        """The next thing the cell says, None if it is gone. Raises `TimeoutError`."""
        async with asyncio.timeout(timeout_s):
            data = await asyncio.get_running_loop().sock_recv(cell.control, 1 << 16)
        return orjson.loads(data) if data else None

    async def _test_in(self, cell: Cell, stdin: bytes, what: Mapping[str, str]) -> ProgramResult:
        limits = self._limits
        streams = [Capture(limits.output_bytes, lambda: cell.kill("output")) for _ in range(3 if what else 2)]
        out, err, *value = streams
        nonce = secrets.token_hex(8)
        sent = [memory_file(stdin)]
        began = time.monotonic()
        try:
            if what:
                sent += [memory_file(orjson.dumps({"function": None, "assertions": None, "nonce": nonce, **what}))]
            order = orjson.dumps({"cpu_s": limits.cpu_s})
            handles = [sent[0], *(stream.writer for stream in streams), *sent[1:]]
            socket.send_fds(cell.control, [order], handles)
            for stream in streams:
                stream.close_writer()
            try:
                end = await self._hear(cell, limits.wall_s)
            except TimeoutError:
                cell.kill("wall")
                end = None
            for stream in streams if end is not None else ():
                await stream.finish(GRACE_S)
            full = any(stream.full for stream in streams)
            if full:
                cell.kill("output")
            if end is None or full:  # the whole cell ended, or has to
                end = await self._end_of(cell)
            else:
                late = end["cpu_s"] > limits.cpu_s
                peak = end["peak_bytes"] - self._zygote.facts["resident_bytes"]
                if not end["clean"]:
                    await self._shut()
                end = {**end, "reason": "cpu" if late else "", "peak_bytes": peak}
            for stream in streams:
                await stream.finish(GRACE_S)
            end["wall_s"] = time.monotonic() - began
            result = result_of(end, limits, out, err)
            return with_value(result, bytes(value[0].data), nonce) if value else result
        finally:
            for handle in sent:
                os.close(handle)
            for stream in streams:
                stream.close()

    async def _end_of(self, cell: Cell) -> dict[str, Any]:
        """Of a cell that was told to end, or did."""
        end = await cell.ended(GRACE_S)
        await self._shut()
        if "error" in end:
            raise SandboxError(str(end["error"]))
        return {**end, "cpu_s": end["test_cpu_s"]}
