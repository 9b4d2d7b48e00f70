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
from pydantic import JsonValue

from coa.tools.sandbox.base import MB, Limits, Result, SandboxError, Verdict
from coa.tools.sandbox.cells import GRACE_S, Cell, collect_files, first_words, job_of, last_line, result_of, with_value
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
        return await self._test(to_bytes(stdin), function=None)

    async def call(self, function: str, arguments: Sequence[JsonValue]) -> Result:
        return await self._test(orjson.dumps(list(arguments)), function=function)

    async def close(self) -> None:
        cell, self._cell = self._cell, None
        if cell is not None:
            await cell.__aexit__()

    async def _test(self, stdin: bytes, function: str | None) -> Result:
        async with self._one_at_a_time, self._turns:
            try:
                cell = await self._open()
                return self._broken if cell is None and self._broken else await self._test_in(cell, stdin, function)
            except (SandboxError, OSError) as error:
                await self.close()
                return Result(Verdict.SANDBOX_ERROR, note=str(error))
            except BaseException:  # cancelled in mid-test: the cell is in no known state
                await self.close()
                raise

    async def _open(self) -> Cell | None:
        """None if the program does not compile."""
        if self._cell is not None or self._broken is not None:
            return self._cell
        self._cell = cell = await Cell(self._zygote, self._job, b"", self._limits, timed=False).__aenter__()
        said = await self._hear(cell, self._limits.wall_s + GRACE_S)
        if said is not None and said["event"] == "ready":
            return cell
        end = await cell.ended(GRACE_S)
        if said is None or said["event"] != "compile_error" or "error" in end:
            await cell.err.finish(GRACE_S)
            why = end.get("error") or (said or {}).get("reason") or last_line(cell.err)
            raise SandboxError(f"a program could not be walled in: {why}")
        await cell.err.finish(GRACE_S)
        self._broken = result_of(end, self._limits, cell.out, cell.err, compiled=False)
        await self.close()
        return None

    async def _hear(self, cell: Cell, timeout_s: float) -> dict[str, Any] | None:
        """The next thing the cell says, None if it is gone. Raises `TimeoutError`."""
        async with asyncio.timeout(timeout_s):
            data = await asyncio.get_running_loop().sock_recv(cell.control, 1 << 16)
        return orjson.loads(data) if data else None

    async def _test_in(self, cell: Cell | None, stdin: bytes, function: str | None) -> Result:
        assert cell is not None
        limits = self._limits
        out, err, value = (Capture(limits.output_bytes, lambda: cell.kill("output")) for _ in range(3))
        nonce = secrets.token_hex(8)
        order = {"cpu_s": limits.cpu_s, "function": function, "nonce": nonce}
        given = memory_file(stdin)
        began = time.monotonic()
        try:
            writers = [out.writer, err.writer] + ([value.writer] if function else [])
            socket.send_fds(cell.control, [orjson.dumps(order)], [given, *writers])
            for stream in (out, err, value):
                stream.close_writer()
            try:
                end = await self._hear(cell, limits.wall_s)
            except TimeoutError:
                cell.kill("wall")
                end = None
            if end is None:  # the whole cell ended, or has to
                end = await cell.ended(GRACE_S)
                if "error" in end:
                    raise SandboxError(str(end["error"]))
                end = {**end, "wall_s": time.monotonic() - began}
                await self.close()
            else:
                peak = end["peak_bytes"] - self._zygote.facts["resident_bytes"]
                late = end["cpu_s"] > limits.cpu_s
                end = {**end, "wall_s": time.monotonic() - began, "reason": "cpu" if late else "", "peak_bytes": peak}
            for stream in (out, err, value):
                await stream.finish(GRACE_S)
            return with_value(result_of(end, limits, out, err), bytes(value.data), nonce)
        finally:
            os.close(given)
            for stream in (out, err, value):
                stream.close()
