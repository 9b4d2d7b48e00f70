"""One run as the supervisor sees it: its descriptors on our side, how it ended, and what that end means.

Input goes in through files in memory. Output comes back through pipes that are read up to a limit (`Capture`). A `Cell`
is one run in a warm interpreter. `result_of` turns an exit status and the reason of a kill into a `ProgramResult`.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
import stat
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, Final

import orjson

from coa.sandbox.base import (
    MB,
    CodeVerdict,
    ProgramLimits,
    ProgramResult,
    SandboxError,
    Script,
    UnreadableArguments,
    writable,
)
from coa.sandbox.inside.cell import READABLE, UNREADABLE
from coa.sandbox.values import read_value
from coa.sandbox.zygote import Zygote

GRACE_S: Final = 5.0
"""How long after a limit the warm interpreter may take to report an end before it counts as stuck."""
MSG_CMSG_CLOEXEC: Final = 0x40000000
_LONGEST_NAME, _LONGEST_PATH = 255, 2000


_SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def memory_file(data: bytes, *, sealed: bool = True) -> int:
    """An unnamed file in memory that holds `data`, positioned at its beginning. A sealed one never changes again.

    A run that could write to its standard input would have memory there that no limit counts.
    """
    handle = os.memfd_create("coa", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
        os.lseek(handle, 0, os.SEEK_SET)
        if sealed:
            fcntl.fcntl(handle, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(handle)
        raise
    return handle


class Capture:
    """The reading end of a pipe. It keeps up to `limit` bytes and calls `when_full` once if there are more."""

    def __init__(self, limit: int, when_full: Callable[[], None]) -> None:
        self.data = bytearray()
        self.full = False
        self._limit = limit
        self._when_full = when_full
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._handle, self.writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._handle, False)
        asyncio.get_running_loop().add_reader(self._handle, self._read)

    def _read(self) -> bool:
        """Returns whether there may be more to read at once."""
        try:
            chunk = os.read(self._handle, 1 << 16)
        except BlockingIOError:
            return False
        except OSError:
            chunk = b""
        if not chunk:
            self.close()
        elif not self.full:
            room = self._limit - len(self.data)
            self.data += chunk[:room]
            if len(chunk) > room:
                self.full = True
                self._when_full()
        return bool(chunk)

    def close_writer(self) -> None:
        """Close our copy; the run has another one."""
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    async def finish(self, timeout_s: float) -> None:
        """Read until the last writer is gone. All writers are dead by then, so it does not take long."""
        self.close_writer()
        while self._handle >= 0 and not self.full and self._read():
            pass  # usually all of it has arrived already; a turn of the event loop for each piece would take longer
        if self._end.done():
            return
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._end)
        except TimeoutError:
            self.full = True
        finally:
            self.close()

    def close(self) -> None:
        self.close_writer()
        if self._handle >= 0:
            asyncio.get_running_loop().remove_reader(self._handle)
            os.close(self._handle)
            self._handle = -1
        if not self._end.done():
            self._end.set_result(None)


class Cell:
    """A run in a warm interpreter. Whatever happens, leaving the context ends the run and closes our descriptors."""

    def __init__(self, zygote: Zygote, job: bytes, stdin: bytes, limits: ProgramLimits, *, timed: bool = True) -> None:
        """`timed=False`: the cell lives until it is asked to end, and each test in it has the time limits."""
        self.zygote, self.limits, self.number = zygote, limits, 0
        self._job, self._stdin, self._timed = job, stdin, timed

    async def __aenter__(self) -> Cell:
        self.out = Capture(self.limits.output_bytes, lambda: self.kill("output"))
        self.err = Capture(self.limits.output_bytes, lambda: self.kill("output"))
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.setblocking(False)
        own: list[int] = []
        try:
            own += [memory_file(self._job)]
            own += [memory_file(self._stdin)]
            handles = (own[0], theirs.fileno(), own[1], self.out.writer, self.err.writer)
            untimed = {"wall_s": 1e9, "cpu_s": 0, "test_cpu_s": self.limits.cpu_s}
            wire = limits_on_the_wire(self.limits) | ({} if self._timed else untimed)
            self.number, self._end = await self.zygote.run(wire, handles)
        except BaseException:
            self._close()
            raise
        finally:
            theirs.close()
            for handle in own:
                os.close(handle)
            self.out.close_writer()
            self.err.close_writer()
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self._end.done():
            self.kill("cancelled")
        self.zygote.forget(self.number)
        self._close()

    def kill(self, reason: str) -> None:
        self.zygote.kill(self.number, reason)

    async def ended(self, timeout_s: float) -> dict[str, Any]:
        """Wait for the end of the run, and return the warm interpreter's report of it."""
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(self._end)
        except TimeoutError:
            self.zygote.replace("it does not answer")
            return {"error": "the warm interpreter did not end a run in time and was replaced"}

    def _close(self) -> None:
        for part in (self.control, self.out, self.err):
            part.close()


def first_words(control: socket.socket) -> tuple[dict[str, Any], int | None]:
    """The message of the run's process before it started the code, and a descriptor of its folder if one was sent."""
    try:
        data, handles, _, _ = socket.recv_fds(control, 1 << 16, 1, MSG_CMSG_CLOEXEC)
    except OSError:
        return {}, None
    return (orjson.loads(data) if data else {}), (handles[0] if handles else None)


def last_line(stream: Capture) -> str:
    return bytes(stream.data).decode("utf-8", "replace").strip().rpartition("\n")[2] or "its process died"


def limits_on_the_wire(limits: ProgramLimits) -> dict[str, Any]:
    """As the code in `inside` reads them."""
    same = {name: getattr(limits, name) for name in ("wall_s", "cpu_s", "processes", "open_files")}
    return {**same, "test_cpu_s": 0, "memory_bytes": limits.memory_mb * MB, "disk_bytes": limits.disk_mb * MB}


def job_of(kind: str, script: Script, *, collect: bool = False, lines: bool = False, nonce: str = "") -> bytes:
    """What the run's process reads. `lines`: write each line at once, so that a run cut short shows how far it got."""
    for name in script.collect:
        _inner_path(name)
    placed = {}
    for name, content in script.files.items():
        placed[str(_inner_path(name))] = (
            {"text": writable(content)} if isinstance(content, str) else {"hex": content.hex()}
        )
    for name in placed:
        if inside := next((str(folder) for folder in PurePosixPath(name).parents if str(folder) in _taken(placed)), ""):
            raise SandboxError(f"the file name {name!r} needs a folder where the file {inside!r} is")
    same = {name: getattr(script, name) for name in ("prelude", "function", "assertions")}
    arguments = [writable(argument) for argument in script.arguments]
    job = {"kind": kind, "code": writable(script.code), "arguments": arguments, "files": placed, **same}
    return orjson.dumps({**job, "collect": collect, "lines": lines, "nonce": nonce})


def result_of(
    end: Mapping[str, Any], limits: ProgramLimits, out: Capture, err: Capture, *, compiled: bool = True
) -> ProgramResult:
    """`end` has the wait status and the reason of a kill, as the warm interpreter reported them."""
    code = os.waitstatus_to_exitcode(end["status"])
    verdict, note = _judge(code, end, limits, bytes(err.data[-400:]), compiled, out.full or err.full)
    exit_code, signalled = (code, None) if code >= 0 else (None, -code)
    spent = end["wall_s"], end["cpu_s"], max(end["peak_bytes"], 0) / MB
    texts = bytes(out.data), bytes(err.data)
    return ProgramResult(verdict, *texts, exit_code, signalled, *spent, out.full, err.full, note=note)


def _judge(
    code: int, end: Mapping[str, Any], limits: ProgramLimits, last: bytes, compiled: bool, full: bool
) -> tuple[CodeVerdict, str]:
    reason = end["reason"]
    if reason == "wall":
        return CodeVerdict.TLE, f"ended after {limits.wall_s:g} seconds"
    if reason == "cpu" or code == -signal.SIGXCPU or (code == -signal.SIGKILL and end["cpu_s"] > limits.cpu_s):
        return CodeVerdict.TLE, f"ended after {limits.cpu_s:g} seconds of CPU time"
    if reason == "memory":
        return CodeVerdict.MLE, f"ended above {limits.memory_mb} MB of memory"
    if reason == "output" or full:
        return CodeVerdict.OLE, f"ended after {limits.output_bytes} bytes of output"
    if reason == "processes":
        return CodeVerdict.RE, f"ended above {limits.processes} processes"
    if not compiled:
        return CodeVerdict.CE, "it does not compile"
    if code == 0:
        return CodeVerdict.OK, ""
    if last.rstrip().rpartition(b"\n")[2].startswith(b"MemoryError"):
        return CodeVerdict.MLE, f"no memory beyond {limits.memory_mb} MB"
    if code < 0:
        return CodeVerdict.RE, f"ended by signal {-code}"
    return CodeVerdict.RE, f"exit code {code}"


def with_value(result: ProgramResult, reported: bytes, nonce: str) -> ProgramResult:
    """Add the value that a function returned. Without the nonce in front, our side of the sandbox did not write it.

    Before it runs any of the program, our side writes whether it could read the arguments. A value that cannot be read
    is no value: the program is to blame for it, and the result says so.
    """
    mark = nonce.encode()
    if reported.startswith(mark + UNREADABLE):
        why = reported[len(mark + UNREADABLE) :].decode("utf-8", "replace")
        raise UnreadableArguments(f"the arguments cannot be read: {why}")
    begin = mark + READABLE + mark
    if not reported.startswith(begin):
        return result
    try:
        return replace(result, value=read_value(reported[len(begin) :]), returned=True)
    except ValueError as error:
        return replace(result, note=result.note or f"the value that it returned cannot be read: {error}")


def collect_files(folder: int, names: Sequence[str], limits: ProgramLimits) -> dict[str, bytes]:
    """Plain files of the run's folder, by name. Links are not followed: they would lead to files on our side."""
    found: dict[str, bytes] = {}
    for name in names:
        path = _inner_path(name)
        with suppress(OSError, ValueError):  # not there, not a plain file, or no name at all
            found[name] = _read_below(folder, path.parts, limits.disk_mb * MB - sum(map(len, found.values())))
    return found


def files_in(sent: bytes, names: Sequence[str]) -> dict[str, bytes]:
    """As `collect_files`, from what came through a pipe: for each file a line with its name and size, then bytes."""
    for name in names:
        _inner_path(name)
    found: dict[str, bytes] = {}
    while sent:
        line, _, rest = sent.partition(b"\n")
        try:
            head = orjson.loads(line)
            name, size = str(head["name"]), int(head["size"])
        except (ValueError, TypeError, KeyError):
            break  # not what our side of the sandbox writes
        if name in names and 0 <= size <= len(rest):
            found[name] = rest[:size]
        sent = rest[max(size, 0) :]
    return found


def _taken(files: Mapping[str, object]) -> Set[str]:
    return files.keys() | {"main.py"}


def _inner_path(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise SandboxError(f"the file name {name!r} does not stay in the working folder")
    try:
        encoded = [part.encode() for part in path.parts]
    except UnicodeEncodeError as error:
        raise SandboxError(f"the file name {name!r} cannot be written as UTF-8") from error
    if any(b"\0" in part for part in encoded):
        raise SandboxError(f"the file name {name!r} has a NUL character, which no file name may have")
    if any(len(part) > _LONGEST_NAME for part in encoded) or sum(map(len, encoded)) > _LONGEST_PATH:
        raise SandboxError(f"the file name {name[:40]!r}... is too long")
    return path


def _read_below(folder: int, parts: Sequence[str], most_bytes: int) -> bytes:
    place = os.dup(folder)
    try:
        for number, part in enumerate(parts, start=1):
            last = number == len(parts)
            kind = os.O_NONBLOCK if last else os.O_DIRECTORY
            inner = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | kind, dir_fd=place)
            os.close(place)
            place = inner
        if not stat.S_ISREG(os.fstat(place).st_mode):
            raise OSError("not a plain file")
        data = b""
        while len(data) <= most_bytes and (chunk := os.read(place, 1 << 20)):
            data += chunk
        if len(data) > most_bytes:
            raise OSError("too large")
        return data
    finally:
        os.close(place)
