"""The default sandbox: warm interpreters that fork once per run into namespaces of its own."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from typing import Final

from coa.sandbox.base import MB, CodeVerdict, ProgramLimits, ProgramResult, SandboxError
from coa.sandbox.cells import GRACE_S, Cell, collect_files, first_words, job_of, last_line, result_of
from coa.sandbox.interpreter import Interpreter, find_interpreter
from coa.sandbox.programs import WarmProgram
from coa.sandbox.streams import to_bytes
from coa.sandbox.zygote import Zygote

COMMON: Final = ("datetime", "decimal", "fractions", "heapq", "json", "random", "statistics", "string", "typing")
"""What programs import most, and each of which takes longer to import than a run to start."""
SCIENCE: Final = (*COMMON, "numpy", "sympy")
_SCIENTIFIC: Final = re.compile(r"^[ \t]*(?:import|from)[ \t]+.*\b(?:numpy|sympy|scipy|pandas|mpmath)\b", re.MULTILINE)


class WarmSandbox:
    """`workers`: how many runs at once; the others wait their turn, first come first served."""

    def __init__(
        self, interpreter: Interpreter | None = None, *, workers: int | None = None, limits: ProgramLimits | None = None
    ) -> None:
        self.interpreter = interpreter or find_interpreter()
        self.limits = limits or ProgramLimits()
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
        limits: ProgramLimits | None = None,
    ) -> ProgramResult:
        limits = limits or self.limits
        job = job_of("script", code, arguments=arguments, files=files, collect=bool(collect), lines=True)
        async with self._turns:
            try:
                return await self._run(self._zygote_for(code), job, to_bytes(stdin), collect, limits)
            except (SandboxError, OSError) as error:
                return ProgramResult(CodeVerdict.SANDBOX_ERROR, note=str(error))

    async def program(self, code: str, *, prelude: str = "", limits: ProgramLimits | None = None) -> WarmProgram:
        job = job_of("program", code, prelude=prelude)
        return WarmProgram(self._zygote_for(code), job, limits or self.limits, self._turns)

    async def close(self) -> None:
        self._plain.close()
        self._science.close()

    def _zygote_for(self, code: str) -> Zygote:
        return self._science if _SCIENTIFIC.search(code) else self._plain

    async def _run(
        self, zygote: Zygote, job: bytes, stdin: bytes, collect: Sequence[str], limits: ProgramLimits
    ) -> ProgramResult:
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
