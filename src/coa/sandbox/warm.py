"""The default sandbox: warm interpreters that fork once per run, each run in separate namespaces.

Starting Python and importing libraries takes longer than most programs run. So two interpreters are kept ready, one of
them with numpy and sympy loaded, and a run is a fork of one of them (zygote.py, inside/zygote.py). A `WarmProgram` goes
one step further: it is compiled once in such a fork, a cell, and every test is a fork of that cell.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import socket
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import orjson

from coa.sandbox import cells
from coa.sandbox.base import (
    CodeVerdict,
    Program,
    ProgramLimits,
    ProgramResult,
    Sandbox,
    SandboxError,
    Script,
    UnreadableArguments,
)
from coa.sandbox.cells import GRACE_S, Capture, Cell
from coa.sandbox.interpreter import Interpreter
from coa.sandbox.zygote import Zygote

COMMON: Final = ("datetime", "decimal", "fractions", "heapq", "json", "random", "statistics", "string", "typing")
"""The modules that programs import most. Importing any of them takes longer than starting a run."""
SCIENCE: Final = (*COMMON, "numpy", "sympy")
_SCIENTIFIC: Final = re.compile(r"^[ \t]*(?:import|from)[ \t]+.*\b(?:numpy|sympy|scipy|pandas|mpmath)\b", re.MULTILINE)
MOST_LANES: Final = 4
"""Cells of one program: each holds a process for as long as the program is kept."""


class WarmSandbox(Sandbox):
    """`workers` is the number of runs at once; the others wait their turn, first come first served."""

    def __init__(self, interpreter: Interpreter, workers: int | None, limits: ProgramLimits) -> None:
        self.interpreter, self.limits = interpreter, limits
        self._turns = asyncio.Semaphore(workers or os.cpu_count() or 1)
        self._plain = Zygote(self.interpreter, COMMON)
        self._science = Zygote(self.interpreter, SCIENCE)

    @property
    def about(self) -> str:
        facts = self._plain.facts or self._science.facts
        locks = [f"Landlock {facts['landlock']}"] if facts.get("landlock") else []
        locks += ["seccomp"] if facts.get("seccomp") else []
        version = ".".join(map(str, self.interpreter.version))
        return f"warm Python {version}, namespaces, no capabilities, {', '.join(locks) or 'no further locks'}"

    async def start(self) -> None:
        """Not needed before a run; shows early whether the sandbox works here."""
        await self._plain.start()

    async def run_script(self, script: Script, limits: ProgramLimits) -> ProgramResult:
        job = cells.job_of("script", script, collect=bool(script.collect), lines=True)
        async with self._turns:
            try:
                async with Cell(self._zygote_for(script.code), job, script.stdin, limits) as cell:
                    return await self._finish(cell, script)
            except (SandboxError, OSError) as error:
                return ProgramResult(CodeVerdict.SANDBOX_ERROR, note=str(error))

    async def program(self, code: str, *, prelude: str = "", limits: ProgramLimits | None = None) -> WarmProgram:
        job = cells.job_of("program", Script(code, prelude=prelude))
        return WarmProgram(self._zygote_for(code), job, limits or self.limits, self._turns)

    async def close(self) -> None:
        self._plain.close()
        self._science.close()

    def _zygote_for(self, code: str) -> Zygote:
        return self._science if _SCIENTIFIC.search(code) else self._plain

    async def _finish(self, cell: Cell, script: Script) -> ProgramResult:
        limits = cell.limits
        end = await cell.ended(limits.wall_s + GRACE_S)
        said, folder = cells.first_words(cell.control)
        try:
            if "error" in end:
                raise SandboxError(str(end["error"]))
            if said.get("event") not in ("started", "compile_error") and not end["reason"]:
                await cell.err.finish(GRACE_S)
                raise SandboxError(f"a run could not be isolated: {said.get('reason') or cells.last_line(cell.err)}")
            found = {} if folder is None else cells.collect_files(folder, script.collect, limits)
        finally:
            if folder is not None:
                os.close(folder)
        await cell.out.finish(GRACE_S)
        await cell.err.finish(GRACE_S)
        compiled = said.get("event") != "compile_error"
        return replace(cells.result_of(end, limits, cell.out, cell.err, compiled=compiled), files=found)


class WarmProgram(Program):
    """A program compiled in a cell. It gets further cells while tests are asked for at once and turns are free.

    Each test is a fork. Tests that run at the same time do so in different cells, each behind its own walls.
    """

    def __init__(self, zygote: Zygote, job: bytes, limits: ProgramLimits, turns: asyncio.Semaphore) -> None:
        self.zygote, self.job, self.limits, self.turns = zygote, job, limits, turns
        self._lanes: list[_Lane] = []

    async def close(self) -> None:
        for lane in self._lanes:
            await lane.close()

    async def test(self, stdin: bytes, function: str | None = None, assertions: str | None = None) -> ProgramResult:
        if self.compile_error is not None:
            return self.compile_error
        lane = min(self._lanes, key=lambda lane: lane.asked, default=None)
        # A further cell costs as much as a few tests: worth it only for a turn that would stay unused.
        if lane is None or (lane.asked and len(self._lanes) < MOST_LANES and not self.turns.locked()):
            lane = _Lane(self)
            self._lanes.append(lane)
        called = function is not None or assertions is not None
        return await lane.test(stdin, {"function": function, "assertions": assertions} if called else {})


class _Lane:
    """Runs tests one after the other in one cell. If a test ends the cell, the next test gets a new one."""

    def __init__(self, program: WarmProgram) -> None:
        self._program, self._limits = program, program.limits
        self._cell: Cell | None = None
        self._one_at_a_time = asyncio.Lock()
        self.asked = 0
        """Tests that run or wait here."""

    async def close(self) -> None:
        async with self._one_at_a_time:  # a running test comes to its end first
            await self._shut()

    async def _shut(self) -> None:
        cell, self._cell = self._cell, None
        if cell is not None:
            await cell.__aexit__()

    async def test(self, stdin: bytes, what: Mapping[str, str | None]) -> ProgramResult:
        self.asked += 1
        try:
            async with self._one_at_a_time, self._program.turns:
                return await self._in_turn(stdin, what)
        finally:
            self.asked -= 1

    async def _in_turn(self, stdin: bytes, what: Mapping[str, str | None]) -> ProgramResult:
        try:
            cell = await self._open()
            if cell is None:
                note = "the program has no cell"
                return self._program.compile_error or ProgramResult(CodeVerdict.SANDBOX_ERROR, note=note)
            return await self._test_in(cell, stdin, what)
        except UnreadableArguments:
            raise
        except (SandboxError, OSError) as error:
            await self._shut()
            return ProgramResult(CodeVerdict.SANDBOX_ERROR, note=str(error))
        except BaseException:  # cancelled in the middle of a test: the state of the cell is unknown
            await self._shut()
            raise

    async def _open(self) -> Cell | None:
        """None if the program cannot be compiled within the limits; its `compile_error` is then set."""
        program, limits = self._program, self._limits
        if self._cell is not None or program.compile_error is not None:
            return self._cell
        self._cell = cell = await Cell(program.zygote, program.job, b"", limits, timed=False).__aenter__()
        try:
            said = await self._receive(cell, limits.wall_s + GRACE_S)
        except TimeoutError:
            cell.kill("wall")
            said = None
        if said is not None and said["event"] == "ready":
            return cell
        end = await cell.ended(GRACE_S)
        await cell.err.finish(GRACE_S)
        compiling = said is None and (end.get("reason") or os.WIFSIGNALED(end.get("status", 0)))
        if "error" in end or not (compiling or (said is not None and said["event"] == "compile_error")):
            why = end.get("error") or (said or {}).get("reason") or cells.last_line(cell.err)
            raise SandboxError(f"a program could not be isolated: {why}")
        program.compile_error = cells.result_of(end, limits, cell.out, cell.err, compiled=False)
        await self._shut()
        return None

    async def _receive(self, cell: Cell, timeout_s: float) -> dict[str, Any] | None:
        """The cell's next message, or None if the cell is gone. Raises `TimeoutError`."""
        async with asyncio.timeout(timeout_s):
            data = await asyncio.get_running_loop().sock_recv(cell.control, 1 << 16)
        return orjson.loads(data) if data else None

    async def _test_in(self, cell: Cell, stdin: bytes, what: Mapping[str, str | None]) -> ProgramResult:
        limits = self._limits
        streams = [Capture(limits.output_bytes, lambda: cell.kill("output")) for _ in range(3 if what else 2)]
        out, err, *value = streams
        nonce = secrets.token_hex(8)
        sent = [cells.memory_file(stdin)]
        began = time.monotonic()
        try:
            if what:
                sent += [cells.memory_file(orjson.dumps({**what, "nonce": nonce}))]
            order = orjson.dumps({"cpu_s": limits.cpu_s})
            handles = [sent[0], *(stream.writer for stream in streams), *sent[1:]]
            socket.send_fds(cell.control, [order], handles)
            for stream in streams:
                stream.close_writer()
            try:
                end = await self._receive(cell, limits.wall_s)
            except TimeoutError:
                cell.kill("wall")
                end = None
            for stream in streams if end is not None else ():
                await stream.finish(GRACE_S)
            full = any(stream.full for stream in streams)
            if full:
                cell.kill("output")
            if end is None or full:  # the whole cell ended, or has to
                end = await cell.ended(GRACE_S)
                await self._shut()
                if "error" in end:
                    raise SandboxError(str(end["error"]))
                end = {**end, "cpu_s": end["test_cpu_s"]}
            else:
                late = end["cpu_s"] > limits.cpu_s
                peak = end["peak_bytes"] - self._program.zygote.facts["resident_bytes"]
                if not end["clean"]:
                    await self._shut()
                end = {**end, "reason": "cpu" if late else "", "peak_bytes": peak}
            for stream in streams:
                await stream.finish(GRACE_S)
            end["wall_s"] = time.monotonic() - began
            result = cells.result_of(end, limits, out, err)
            return cells.with_value(result, bytes(value[0].data), nonce) if value else result
        finally:
            for handle in sent:
                os.close(handle)
            for stream in streams:
                stream.close()
