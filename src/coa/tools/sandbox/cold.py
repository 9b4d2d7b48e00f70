"""Sandboxes that start a fresh interpreter for each run behind the walls of another program, or behind none.

Slower than warm interpreters, and the answer where those are not possible: bubblewrap may be allowed what a plain
program is not. The locks that need no namespace (limits, Landlock, seccomp) are ours in every case.
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
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coa.tools.sandbox.base import MB, Limits, Result, SandboxError, Verdict
from coa.tools.sandbox.cells import (
    GRACE_S,
    collect_files,
    first_words,
    job_of,
    last_line,
    limits_on_the_wire,
    result_of,
    with_value,
    written_arguments,
)
from coa.tools.sandbox.inside.usage import memory_of, usage
from coa.tools.sandbox.interpreter import HOME, WORK, Interpreter, find_interpreter
from coa.tools.sandbox.streams import Capture, memory_file, to_bytes

LOOK_S: Final = 0.05
_DEADLY: Final = frozenset(
    (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGKILL, signal.SIGSEGV, signal.SIGSYS, signal.SIGXCPU)
)


@dataclass(frozen=True)
class Walls:
    """How to start an interpreter behind them, and how things are called there."""

    command: Sequence[str]
    home: str
    work: str
    site: Sequence[str]
    writable: Sequence[str]
    environment: Mapping[str, str]


def bwrap(interpreter: Interpreter, folder: Path, limits: Limits) -> Walls:
    """Bubblewrap. Its environment could be read inside through /proc, whatever it is told to clear, so it gets none."""
    command = ["bwrap", "--unshare-user", "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    command += ["--uid", "1000", "--gid", "1000", "--hostname", "sandbox"]
    for source, target in interpreter.binds:
        command += ["--ro-bind", source, target]
    for target, path in interpreter.symlinks:
        command += ["--symlink", target, path]
    for path, text in interpreter.files.items():
        (folder / Path(path).name).write_text(text)
        command += ["--ro-bind", str(folder / Path(path).name), path]
    for path in interpreter.hidden:
        command += ["--tmpfs", path]
    command += ["--proc", "/proc", "--dev", "/dev"]
    for path in interpreter.writable:
        share = limits.disk_mb * MB // len(interpreter.writable)  # each is a file system of its own
        command += ["--size", str(share), "--tmpfs", path]
    command += ["--remount-ro", "/"]
    for name, value in interpreter.environment.items():
        command += ["--setenv", name, value]
    command += [interpreter.python]
    return Walls(command, HOME, WORK, interpreter.site, interpreter.writable, {})


def unsafe(interpreter: Interpreter, folder: Path, limits: Limits) -> Walls:
    """None: this machine's files can be read. For machines that are thrown away afterwards, and only when asked for."""
    environment = {**interpreter.environment, "HOME": str(folder), "TMPDIR": str(folder)}
    targets = {target: source for source, target in interpreter.binds}
    site = [targets.get(path, path) for path in interpreter.site]
    return Walls([interpreter.python], str(Path(__file__).parent), str(folder), site, [str(folder)], environment)


COMMANDS: Final[Mapping[str, Callable[[Interpreter, Path, Limits], Walls]]] = {"bwrap": bwrap, "unsafe": unsafe}


def found_commands() -> list[str]:
    return [name for name in COMMANDS if name != "unsafe" and shutil.which(name)]


class ColdSandbox:
    def __init__(
        self,
        kind: str,
        interpreter: Interpreter | None = None,
        *,
        workers: int | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.kind = kind
        self.interpreter = interpreter or find_interpreter()
        self.limits = limits or Limits()
        self._turns = asyncio.Semaphore(workers or os.cpu_count() or 1)

    @property
    def about(self) -> str:
        version = ".".join(map(str, self.interpreter.version))
        walls = "NO ISOLATION" if self.kind == "unsafe" else self.kind
        return f"{walls}, a fresh Python {version} for each run"

    async def start(self) -> None:
        """Try it once."""
        if self.kind != "unsafe" and shutil.which(self.kind) is None:
            raise SandboxError(f"{self.kind} is not on PATH", cure="sudo apt-get install bubblewrap")
        result = await self.run("print(6 * 7)")
        if result.text != "42\n":
            raise SandboxError(result.note or result.error_text)

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
        job = job_of("script", code, arguments=arguments, files=files, collect=bool(collect), lines=True)
        return await self.do(job, to_bytes(stdin), limits or self.limits, collect)

    async def program(self, code: str, *, prelude: str = "", limits: Limits | None = None) -> ColdProgram:
        return ColdProgram(self, code, prelude, limits or self.limits)

    async def close(self) -> None:
        """Nothing lives between runs."""

    async def do(
        self, job: bytes, stdin: bytes, limits: Limits, collect: Sequence[str] = (), nonce: str | None = None
    ) -> Result:
        async with self._turns:
            try:
                with ExitStack() as stack:
                    return await self._do(stack, job, stdin, limits, collect, nonce)
            except (SandboxError, OSError) as error:
                return Result(Verdict.SANDBOX_ERROR, note=str(error))

    async def _do(
        self, stack: ExitStack, job: bytes, stdin: bytes, limits: Limits, collect: Sequence[str], nonce: str | None
    ) -> Result:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="coa-", ignore_cleanup_errors=True)))
        walls = COMMANDS[self.kind](self.interpreter, folder, limits)
        setup = {
            "site": walls.site,
            "work": walls.work,
            "writable": walls.writable,
            "limits": limits_on_the_wire(limits),
        }
        watch = _Watch(limits)
        streams = [Capture(limits.output_bytes, lambda: watch.kill("output")) for _ in range(3)]
        out, err, value = streams
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control.setblocking(False)
        files = [memory_file(json.dumps(setup).encode()), memory_file(job), memory_file(stdin)]
        for closing in (*(stream.close for stream in streams), control.close, theirs.close):
            stack.callback(closing)
        for handle in files:
            stack.callback(os.close, handle)
        passed = (files[0], files[1], theirs.fileno(), value.writer)
        start = f"import sys; sys.path[0] = {walls.home!r}; from inside.cold import main; main{passed}"
        program = shutil.which(walls.command[0])
        if program is None:
            raise SandboxError(f"{walls.command[0]} is not there")
        began = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *(program, *walls.command[1:], "-S", "-c", start),
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
        reason = await watch.until_end(process)
        wall_s = time.monotonic() - began
        said, place = first_words(control)
        if place is not None:
            stack.callback(os.close, place)
        for stream in streams:
            await stream.finish(GRACE_S)
        if said.get("event") not in ("started", "compile_error") and not reason:
            raise SandboxError(f"a run could not be walled in: {said.get('reason') or last_line(err)}")
        end = {
            "status": _status(process.returncode or 0, reason),
            "reason": reason,
            "wall_s": wall_s,
            "cpu_s": watch.cpu_s,
            "peak_bytes": watch.peak_bytes,
        }
        found = {} if place is None else collect_files(place, collect, limits.disk_mb * MB)
        result = result_of(end, limits, out, err, compiled=said.get("event") != "compile_error", files=found)
        return with_value(result, bytes(value.data), nonce) if nonce else result


class ColdProgram:
    """Each test is a run of its own."""

    def __init__(self, sandbox: ColdSandbox, code: str, prelude: str, limits: Limits) -> None:
        self._sandbox, self._code, self._prelude, self._limits = sandbox, code, prelude, limits
        self._broken: Result | None = None

    @property
    def compile_error(self) -> Result | None:
        return self._broken

    async def run(self, stdin: bytes | str = b"") -> Result:
        return await self._test(job_of("script", self._code, prelude=self._prelude), to_bytes(stdin), None)

    async def call(self, function: str, arguments: Sequence[object]) -> Result:
        nonce = secrets.token_hex(8)
        job = job_of("script", self._code, prelude=self._prelude, function=function, nonce=nonce)
        return await self._test(job, written_arguments(arguments), nonce)

    async def holds(self, assertions: str) -> Result:
        nonce = secrets.token_hex(8)
        job = job_of("script", self._code, prelude=self._prelude, assertions=assertions, nonce=nonce)
        return await self._test(job, b"", nonce)

    async def _test(self, job: bytes, stdin: bytes, nonce: str | None) -> Result:
        if self._broken is not None:
            return self._broken
        result = await self._sandbox.do(job, stdin, self._limits, nonce=nonce)
        if result.verdict is Verdict.CE:
            self._broken = result
        return result

    async def close(self) -> None:
        """Nothing lives between tests."""


class _Watch:
    """Ends a run that passes a limit, from outside."""

    def __init__(self, limits: Limits) -> None:
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

    async def until_end(self, process: asyncio.subprocess.Process) -> str:
        self._process = process
        limits = self.limits
        deadline = time.monotonic() + limits.wall_s
        try:
            while True:
                try:
                    async with asyncio.timeout(LOOK_S):
                        await process.wait()
                    return self._reason
                except TimeoutError:
                    used = usage({process.pid: 0})[0]
                memory = memory_of(used, limits.memory_mb * MB)
                self.cpu_s, self.peak_bytes = max(self.cpu_s, used.cpu_s), max(self.peak_bytes, memory)
                if memory > limits.memory_mb * MB:
                    self.kill("memory")
                elif len(used.resident) > limits.processes + 4:  # the walls' own processes
                    self.kill("processes")
                elif self.cpu_s > limits.cpu_s:
                    self.kill("cpu")
                elif time.monotonic() > deadline:
                    self.kill("wall")
        finally:
            if process.returncode is None:
                self.kill("cancelled")
                await process.wait()


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _status(code: int, reason: str) -> int:
    """As a wait status. bwrap exits with 128 + n where what it started died of signal n; programs rarely do."""
    if code - 128 in _DEADLY and not reason:
        code = 128 - code
    return -code if code < 0 else code << 8
