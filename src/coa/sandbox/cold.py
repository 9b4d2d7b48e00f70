"""Sandboxes that start a fresh interpreter for each run, behind the walls of another program or behind none.

They are slower than warm interpreters, and the solution where those are not possible: bubblewrap may be allowed what a
plain program is not. The locks that need no namespace (limits, Landlock, seccomp) are ours in every case, as far as the
kernel inside supports them.
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
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from coa.sandbox import cells
from coa.sandbox.base import (
    MB,
    CodeVerdict,
    Program,
    ProgramLimits,
    ProgramResult,
    Sandbox,
    SandboxError,
    Script,
    UnreadableArguments,
)
from coa.sandbox.cells import GRACE_S, Capture, memory_file
from coa.sandbox.inside.usage import Holdings, memory_of, socket_bytes, sockets_of, usage
from coa.sandbox.interpreter import Interpreter
from coa.sandbox.walls import COMMANDS, HINTS, KEEP_FOLDERS, Start, Toll, Walls

LOOK_S: Final = 0.05
SOCKET_BYTES: Final = socket_bytes()
_DEADLY: Final = frozenset(
    (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGKILL, signal.SIGSEGV, signal.SIGSYS, signal.SIGXCPU)
)


class ColdSandbox(Sandbox):
    def __init__(self, kind: str, interpreter: Interpreter, workers: int | None, limits: ProgramLimits) -> None:
        self.kind, self.interpreter, self.limits = kind, interpreter, limits
        self._turns = asyncio.Semaphore(workers or os.cpu_count() or 1)

    @property
    def about(self) -> str:
        version = ".".join(map(str, self.interpreter.version))
        walls = "NO ISOLATION" if self.kind == "unsafe" else self.kind
        return f"{walls}, a fresh Python {version} for each run"

    async def start(self) -> None:
        """Run a small program to see whether the sandbox works here."""
        if self.kind != "unsafe" and shutil.which(self.kind) is None:
            raise SandboxError(f"{self.kind} is not on PATH", hint=HINTS[self.kind])
        result = await self.run("print(6 * 7)")
        if result.text != "42\n":
            why = result.note or result.error_text
            raise SandboxError(why, hint=HINTS.get(self.kind) if "too old" in why else None)

    async def run_script(
        self, script: Script, limits: ProgramLimits, *, lines: bool = True, nonce: str | None = None
    ) -> ProgramResult:
        sent = bool(script.collect) and self.kind not in KEEP_FOLDERS
        job = cells.job_of("script", script, collect=sent, lines=lines, nonce=nonce or "")
        async with self._turns:
            try:
                with ExitStack() as stack:
                    return await self._run(stack, job, script, limits, nonce)
            except UnreadableArguments:
                raise
            except (SandboxError, OSError) as error:
                return ProgramResult(CodeVerdict.SANDBOX_ERROR, note=str(error))

    async def program(self, code: str, *, prelude: str = "", limits: ProgramLimits | None = None) -> ColdProgram:
        return ColdProgram(self, Script(code, prelude=prelude), limits or self.limits)

    async def _run(
        self, stack: ExitStack, job: bytes, script: Script, limits: ProgramLimits, nonce: str | None
    ) -> ProgramResult:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="coa-", ignore_cleanup_errors=True)))
        watch = _ColdWatch(limits)
        out, err = (Capture(limits.output_bytes, lambda: watch.kill("output")) for _ in range(2))
        most = (limits.disk_mb + 1) * MB if script.collect else limits.output_bytes
        value = Capture(most, lambda: watch.kill("output"))
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control.setblocking(False)
        streams = (out, err, value)
        files = [memory_file(b"", sealed=False), memory_file(job), memory_file(script.stdin)]
        for closing in (*(stream.close for stream in streams), control.close, theirs.close):
            stack.callback(closing)
        for handle in files:
            stack.callback(os.close, handle)
        passed = (files[0], files[1], theirs.fileno(), value.writer)
        walls = COMMANDS[self.kind](Start(self.interpreter, folder, limits, passed))
        collect = list(script.collect) if self.kind in KEEP_FOLDERS else []
        places = {"site": walls.site, "work": walls.work, "writable": walls.writable}
        setup = {**places, "limits": cells.limits_on_the_wire(limits), "collect": collect}
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
        said, place = cells.first_words(control)
        if place is not None:
            stack.callback(os.close, place)
        for stream in streams:
            await stream.finish(GRACE_S)
        if said.get("event") not in ("started", "compile_error") and not reason:
            raise SandboxError(f"a run could not be isolated: {said.get('reason') or _complaint(walls, err)}")
        spent = {"wall_s": wall_s, "cpu_s": watch.cpu_s, "peak_bytes": watch.peak_bytes}
        end = {"status": _status(process.returncode or 0, reason), "reason": reason, **spent}
        if place is not None:
            found = cells.collect_files(place, script.collect, limits)
        else:
            found = cells.files_in(bytes(value.data), script.collect)
        result = cells.result_of(end, limits, out, err, compiled=said.get("event") != "compile_error")
        result = replace(result, files=found)
        return cells.with_value(result, bytes(value.data), nonce) if nonce else result


class ColdProgram(Program):
    """Each test is a separate run; nothing lives between them."""

    def __init__(self, sandbox: ColdSandbox, script: Script, limits: ProgramLimits) -> None:
        self._sandbox, self._script, self._limits = sandbox, script, limits

    async def test(self, stdin: bytes, function: str | None = None, assertions: str | None = None) -> ProgramResult:
        if self.compile_error is not None:
            return self.compile_error
        nonce = None if function is None and assertions is None else secrets.token_hex(8)
        script = replace(self._script, stdin=stdin, function=function, assertions=assertions)
        result = await self._sandbox.run_script(script, self._limits, lines=False, nonce=nonce)
        if result.verdict is CodeVerdict.CE:
            self.compile_error = result
        return result


class _ColdWatch:
    """Watches a run from outside, and ends it when it exceeds a limit."""

    def __init__(self, limits: ProgramLimits) -> None:
        self.limits = limits
        self.cpu_s = 0.0
        self.peak_bytes = 0
        self._reason = ""
        self._process: asyncio.subprocess.Process | None = None
        self._holdings = Holdings()

    def kill(self, reason: str) -> None:
        self._reason = self._reason or reason
        if self._process is not None and self._process.returncode is None:
            used = usage({self._process.pid: 0})[0]  # whoever left the process group is still a descendant
            for pid in (*(pid for pid in used.resident if pid != self._process.pid), self._process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

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
                used.held_bytes += sockets_of(used.tasks) * SOCKET_BYTES + self._holdings.bytes_of(used)
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
    """The last line that the walls' program wrote; if it rejects an option, the line before its long help."""
    if walls.log is not None and walls.log.exists() and (text := walls.log.read_text(errors="replace").strip()):
        return text.rpartition("\n")[2]
    first = bytes(err.data).partition(b"\n")[0].decode("utf-8", "replace")
    if first.startswith("flag provided but not defined"):
        return f"{walls.command[0]} is too old: {first}"
    return cells.last_line(err)


def _status(code: int, reason: str) -> int:
    """As a wait status. Walls exit with 128 + n if their child died of signal n; programs rarely do."""
    if code - 128 in _DEADLY and not reason:
        code = 128 - code
    return -code if code < 0 else code << 8
