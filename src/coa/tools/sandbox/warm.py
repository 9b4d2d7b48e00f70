"""The default sandbox: warm interpreters that fork once per run into namespaces of its own."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from coa.tools.sandbox.base import MB, Limits, Result, SandboxError, Verdict
from coa.tools.sandbox.cells import (
    GRACE_S,
    Cell,
    collect_files,
    first_words,
    job_of,
    last_line,
    result_of,
    with_value,
    written_arguments,
)
from coa.tools.sandbox.interpreter import Interpreter, find_interpreter
from coa.tools.sandbox.streams import Capture, memory_file, to_bytes
from coa.tools.sandbox.zygote import Zygote

SCIENCE: Final = ("numpy", "sympy")
_SCIENTIFIC: Final = re.compile(r"^[ \t]*(?:import|from)[ \t]+.*\b(?:numpy|sympy|scipy|pandas|mpmath)\b", re.MULTILINE)


class WarmSandbox:
    """`workers`: how many runs at once; the others wait their turn, first come first served."""

    def __init__(
        self, interpreter: Interpreter | None = None, *, workers: int | None = None, limits: Limits | None = None
    ) -> None:
        self.interpreter = interpreter or find_interpreter()
        self.limits = limits or Limits()
        self._turns = asyncio.Semaphore(workers or os.cpu_count() or 1)
        self._plain = Zygote(self.interpreter)
        self._science = Zygote(self.interpreter, SCIENCE)

    @property
    def about(self) -> str:
        facts = self._plain.facts or self._science.facts
        locks = [f"Landlock {facts['landlock']}"] if facts.get("landlock") else []
        locks += ["seccomp"] if facts.get("seccomp") else []
        version = ".".join(map(str, self.interpreter.version))
        return f"warm Python {version}, namespaces, no capabilities, {', '.join(locks) or 'no further locks'}"

    async def start(self) -> None:
        """Not needed before a run; tells early whether it works here."""
        await self._plain.start()

    async def run(
        self,
        code: str,
        *,
        stdin: bytes | str = b"",
        arguments: Sequence[str] = (),
        files: Mapping[str, bytes | str] | None = None,
        collect: Sequence[str] = (),
        limits: Limits | None = None,
    ) -> Result:
        limits = limits or self.limits
        job = job_of("script", code, arguments=arguments, files=files, collect=bool(collect), lines=True)
        async with self._turns:
            try:
                return await self._run(self._zygote_for(code), job, to_bytes(stdin), collect, limits)
            except (SandboxError, OSError) as error:
                return Result(Verdict.SANDBOX_ERROR, note=str(error))

    async def program(self, code: str, *, prelude: str = "", limits: Limits | None = None) -> WarmProgram:
        job = job_of("program", code, prelude=prelude)
        return WarmProgram(self._zygote_for(code), job, limits or self.limits, self._turns)

    async def close(self) -> None:
        self._plain.close()
        self._science.close()

    def _zygote_for(self, code: str) -> Zygote:
        return self._science if _SCIENTIFIC.search(code) else self._plain

    async def _run(self, zygote: Zygote, job: bytes, stdin: bytes, collect: Sequence[str], limits: Limits) -> Result:
        async with Cell(zygote, job, stdin, limits) as cell:
            end = await cell.ended(limits.wall_s + GRACE_S)
            said, folder = first_words(cell.control)
            try:
                if "error" in end:
                    raise SandboxError(str(end["error"]))
                if said.get("event") not in ("started", "compile_error") and not end["reason"]:
                    await cell.err.finish(GRACE_S)
                    raise SandboxError(f"a run could not be walled in: {said.get('reason') or last_line(cell.err)}")
                found = {} if folder is None else collect_files(folder, collect, limits.disk_mb * MB)
            finally:
                if folder is not None:
                    os.close(folder)
            await cell.out.finish(GRACE_S)
            await cell.err.finish(GRACE_S)
            return result_of(
                end, limits, cell.out, cell.err, compiled=said.get("event") != "compile_error", files=found
            )


class WarmProgram:
    """A program that stays compiled in a cell of its own; a test that ends the cell costs a new one for the next."""

    def __init__(self, zygote: Zygote, job: bytes, limits: Limits, turns: asyncio.Semaphore) -> None:
        self._zygote, self._job, self._limits, self._turns = zygote, job, limits, turns
        self._cell: Cell | None = None
        self._broken: Result | None = None
        self._one_at_a_time = asyncio.Lock()

    @property
    def compile_error(self) -> Result | None:
        return self._broken

    async def run(self, stdin: bytes | str = b"") -> Result:
        return await self._test(to_bytes(stdin), {})

    async def call(self, function: str, arguments: Sequence[object]) -> Result:
        return await self._test(written_arguments(arguments), {"function": function})

    async def holds(self, assertions: str) -> Result:
        return await self._test(b"", {"assertions": assertions})

    async def close(self) -> None:
        async with self._one_at_a_time:  # a test that runs comes to its end first
            await self._shut()

    async def _shut(self) -> None:
        cell, self._cell = self._cell, None
        if cell is not None:
            await cell.__aexit__()

    async def _test(self, stdin: bytes, what: Mapping[str, str]) -> Result:
        async with self._one_at_a_time, self._turns:
            try:
                cell = await self._open()
                if cell is None:
                    return self._broken or Result(Verdict.SANDBOX_ERROR, note="the program has no cell")
                return await self._test_in(cell, stdin, what)
            except (SandboxError, OSError) as error:
                await self._shut()
                return Result(Verdict.SANDBOX_ERROR, note=str(error))
            except BaseException:  # cancelled in mid-test: the cell is in no known state
                await self._shut()
                raise

    async def _open(self) -> Cell | None:
        """None if the program cannot be compiled, or not within the limits; `_broken` tells."""
        if self._cell is not None or self._broken is not None:
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
        self._broken = result_of(end, self._limits, cell.out, cell.err, compiled=False)
        await self._shut()
        return None

    async def _hear(self, cell: Cell, timeout_s: float) -> dict[str, Any] | None:
        """The next thing the cell says, None if it is gone. Raises `TimeoutError`."""
        async with asyncio.timeout(timeout_s):
            data = await asyncio.get_running_loop().sock_recv(cell.control, 1 << 16)
        return orjson.loads(data) if data else None

    async def _test_in(self, cell: Cell, stdin: bytes, what: Mapping[str, str]) -> Result:
        limits = self._limits
        streams = [Capture(limits.output_bytes, lambda: cell.kill("output")) for _ in range(3)]
        out, err, value = streams
        nonce = secrets.token_hex(8)
        given = memory_file(stdin)
        asked = memory_file(orjson.dumps({"function": None, "assertions": None, "nonce": nonce, **what}))
        began = time.monotonic()
        try:
            writers = [out.writer, err.writer] + ([value.writer] if what else [])
            order = orjson.dumps({"cpu_s": limits.cpu_s})
            socket.send_fds(cell.control, [order], [asked, given, *writers])
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
            return with_value(result_of(end, limits, out, err), bytes(value.data), nonce)
        finally:
            os.close(given)
            os.close(asked)
            for stream in streams:
                stream.close()

    async def _end_of(self, cell: Cell) -> dict[str, Any]:
        """Of a cell that was told to end, or did."""
        end = await cell.ended(GRACE_S)
        await self._shut()
        if "error" in end:
            raise SandboxError(str(end["error"]))
        return {**end, "cpu_s": 0.0}  # what is known is the time of all tests together
