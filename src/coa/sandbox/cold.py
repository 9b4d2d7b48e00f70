"""Sandboxes that start a fresh interpreter for each run behind the walls of another program, or behind none.

Slower than warm interpreters, and the answer where those are not possible: bubblewrap may be allowed what a plain
program is not. The locks that need no namespace (limits, Landlock, seccomp) are ours in every case, as far as the
kernel inside has them.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from coa.sandbox.base import MB, CodeVerdict, ProgramLimits, ProgramResult, SandboxError
from coa.sandbox.cells import (
    GRACE_S,
    collect_files,
    files_in,
    first_words,
    job_of,
    last_line,
    limits_on_the_wire,
    result_of,
    with_value,
    written_arguments,
)
from coa.sandbox.inside.usage import memory_of, usage
from coa.sandbox.interpreter import Interpreter, find_interpreter
from coa.sandbox.streams import Capture, memory_file, to_bytes
from coa.sandbox.walls import COMMANDS, HINTS, KEEP_FOLDERS, Start, Toll, Walls

LOOK_S: Final = 0.05
_DEADLY: Final = frozenset(
    (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGKILL, signal.SIGSEGV, signal.SIGSYS, signal.SIGXCPU)
)


class ColdSandbox:
    def __init__(
        self,
        kind: str,
        interpreter: Interpreter | None = None,
        *,
        workers: int | None = None,
        limits: ProgramLimits | None = None,
    ) -> None:
        self.kind = kind
        self.interpreter = interpreter or find_interpreter()
        self.limits = limits or ProgramLimits()
        self._turns = asyncio.Semaphore(workers or os.cpu_count() or 1)

    @property
    def about(self) -> str:
        version = ".".join(map(str, self.interpreter.version))
        walls = "NO ISOLATION" if self.kind == "unsafe" else self.kind
        return f"{walls}, a fresh Python {version} for each run"

    async def start(self) -> None:
        """Try it once."""
        if self.kind != "unsafe" and shutil.which(self.kind) is None:
            raise SandboxError(f"{self.kind} is not on PATH", hint=HINTS[self.kind])
        result = await self.run("print(6 * 7)")
        if result.text != "42\n":
            why = result.note or result.error_text
            raise SandboxError(why, hint=HINTS.get(self.kind) if "too old" in why else None)

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
        sent = bool(collect) and self.kind not in KEEP_FOLDERS
        job = job_of("script", code, arguments=arguments, files=files, collect=sent, lines=True)
        return await self.do(job, to_bytes(stdin), limits or self.limits, collect)

    async def program(self, code: str, *, prelude: str = "", limits: ProgramLimits | None = None) -> ColdProgram:
        return ColdProgram(self, code, prelude, limits or self.limits)

    async def close(self) -> None:
        """Nothing lives between runs."""

    async def do(
        self, job: bytes, stdin: bytes, limits: ProgramLimits, collect: Sequence[str] = (), nonce: str | None = None
    ) -> ProgramResult:
        async with self._turns:
            try:
                with ExitStack() as stack:
                    return await self._do(stack, job, stdin, limits, collect, nonce)
            except (SandboxError, OSError) as error:
                return ProgramResult(CodeVerdict.SANDBOX_ERROR, note=str(error))

    async def _do(
        self,
        stack: ExitStack,
        job: bytes,
        stdin: bytes,
        limits: ProgramLimits,
        collect: Sequence[str],
        nonce: str | None,
    ) -> ProgramResult:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="coa-", ignore_cleanup_errors=True)))
        watch = _ColdWatch(limits)
        out, err = (Capture(limits.output_bytes, lambda: watch.kill("output")) for _ in range(2))
        value = Capture((limits.disk_mb + 1) * MB if collect else limits.output_bytes, lambda: watch.kill("output"))
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control.setblocking(False)
        streams = (out, err, value)
        files = [memory_file(content) for content in (b"", job, stdin)]
        for closing in (*(stream.close for stream in streams), control.close, theirs.close):
            stack.callback(closing)
        for handle in files:
            stack.callback(os.close, handle)
        passed = (files[0], files[1], theirs.fileno(), value.writer)
        walls = COMMANDS[self.kind](Start(self.interpreter, folder, limits, passed))
        setup = {
            "site": walls.site,
            "work": walls.work,
            "writable": walls.writable,
            "limits": limits_on_the_wire(limits),
            "collect": list(collect) if self.kind in KEEP_FOLDERS else [],
        }
        os.pwrite(files[0], json.dumps(setup).encode(), 0)
        program = shutil.which(walls.command[0])
        if program is None:
            raise SandboxError(f"{walls.command[0]} is not there")
        began = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *(program, *walls.command[1:]),
            stdin=files[2],
            stdout=out.writer,
            stderr=err.writer,
            pass_fds=passed,
            env=dict(walls.environment),
            cwd="/",
            start_new_session=True,
        )
        for stream in streams:
            stream.close_writer()
        theirs.close()
        reason = await watch.until_end(process, walls.toll)
        wall_s = time.monotonic() - began
        said, place = first_words(control)
        if place is not None:
            stack.callback(os.close, place)
        for stream in streams:
            await stream.finish(GRACE_S)
        if said.get("event") not in ("started", "compile_error") and not reason:
            raise SandboxError(f"a run could not be walled in: {said.get('reason') or _complaint(walls, err)}")
        end = {
            "status": _status(process.returncode or 0, reason),
            "reason": reason,
            "wall_s": wall_s,
            "cpu_s": watch.cpu_s,
            "peak_bytes": watch.peak_bytes,
        }
        if place is not None:
            found = collect_files(place, collect, limits.disk_mb * MB)
        else:
            found = files_in(bytes(value.data), collect)
        result = result_of(end, limits, out, err, compiled=said.get("event") != "compile_error", files=found)
        return with_value(result, bytes(value.data), nonce) if nonce else result


class ColdProgram:
    """Each test is a run of its own."""

    def __init__(self, sandbox: ColdSandbox, code: str, prelude: str, limits: ProgramLimits) -> None:
        self._sandbox, self._code, self._prelude, self._limits = sandbox, code, prelude, limits
        self._broken: ProgramResult | None = None

    @property
    def compile_error(self) -> ProgramResult | None:
        return self._broken

    async def run(self, stdin: bytes | str = b"") -> ProgramResult:
        return await self._test(job_of("script", self._code, prelude=self._prelude), to_bytes(stdin), None)

    async def call(self, function: str, arguments: Sequence[object]) -> ProgramResult:
        nonce = secrets.token_hex(8)
        job = job_of("script", self._code, prelude=self._prelude, function=function, nonce=nonce)
        return await self._test(job, written_arguments(arguments), nonce)

    async def holds(self, assertions: str) -> ProgramResult:
        nonce = secrets.token_hex(8)
        job = job_of("script", self._code, prelude=self._prelude, assertions=assertions, nonce=nonce)
        return await self._test(job, b"", nonce)

    async def _test(self, job: bytes, stdin: bytes, nonce: str | None) -> ProgramResult:
        if self._broken is not None:
            return self._broken
        result = await self._sandbox.do(job, stdin, self._limits, nonce=nonce)
        if result.verdict is CodeVerdict.CE:
            self._broken = result
        return result

    async def close(self) -> None:
        """Nothing lives between tests."""


class _ColdWatch:
    """Ends a run that passes a limit, from outside."""

    def __init__(self, limits: ProgramLimits) -> None:
        self.limits = limits
        self.cpu_s = 0.0
        self.peak_bytes = 0
        self._reason = ""
        self._process: asyncio.subprocess.Process | None = None

    def kill(self, reason: str) -> None:
        self._reason = self._reason or reason
        if self._process is not None and self._process.returncode is None:
            for pid in usage({self._process.pid: 0})[
                0
            ].resident:  # whoever left the process group is still a descendant
                if pid != self._process.pid:
                    _kill(pid)
            _kill(self._process.pid)

    async def until_end(self, process: asyncio.subprocess.Process, toll: Toll) -> str:
        self._process = process
        limits = self.limits
        deadline = time.monotonic() + limits.wall_s + toll.seconds
        most_bytes = (limits.memory_mb + toll.memory_mb) * MB
        try:
            while True:
                try:
                    async with asyncio.timeout(LOOK_S):
                        await process.wait()
                    return self._reason
                except TimeoutError:
                    used = usage({process.pid: 0})[0]
                memory = memory_of(used, most_bytes)
                self.cpu_s, self.peak_bytes = max(self.cpu_s, used.cpu_s), max(self.peak_bytes, memory)
                if memory > most_bytes:
                    self.kill("memory")
                elif len(used.resident) > limits.processes + toll.processes:
                    self.kill("processes")
                elif self.cpu_s > limits.cpu_s + toll.seconds:
                    self.kill("cpu")
                elif time.monotonic() > deadline:
                    self.kill("wall")
        finally:
            if process.returncode is None:
                self.kill("cancelled")
                await process.wait()


def _complaint(walls: Walls, err: Capture) -> str:
    """What the walls' program said last; of one that does not know an option, the line before its long help."""
    if walls.log is not None and walls.log.exists() and (text := walls.log.read_text(errors="replace").strip()):
        return text.rpartition("\n")[2]
    first = bytes(err.data).partition(b"\n")[0].decode("utf-8", "replace")
    if first.startswith("flag provided but not defined"):
        return f"{walls.command[0]} is too old: {first}"
    return last_line(err)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _status(code: int, reason: str) -> int:
    """As a wait status. Walls exit with 128 + n where what they started died of signal n; programs rarely do."""
    if code - 128 in _DEADLY and not reason:
        code = 128 - code
    return -code if code < 0 else code << 8
