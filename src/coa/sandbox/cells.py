"""One run as the supervisor holds it: its descriptors on our side, its end, and what the end means."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, Final

import orjson

from coa.sandbox.base import MB, CodeVerdict, ProgramLimits, ProgramResult, SandboxError, writable
from coa.sandbox.streams import Capture, memory_file
from coa.sandbox.zygote import Zygote

GRACE_S: Final = 5.0
"""How much later than the limit an end may be told before the warm interpreter is taken for stuck."""
MSG_CMSG_CLOEXEC: Final = 0x40000000


class Cell:
    """A run in a warm interpreter. Whatever happens, leaving it ends the run and closes what is ours."""

    def __init__(self, zygote: Zygote, job: bytes, stdin: bytes, limits: ProgramLimits, *, timed: bool = True) -> None:
        """`timed=False`: it lives until it is told to end; the tests in it have limits of their own."""
        self.zygote = zygote
        self.limits = limits
        self.number = 0
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
            self.number = await self.zygote.run(wire, handles)
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
        if not self.zygote.has_ended(self.number):
            self.kill("cancelled")
        self.zygote.forget(self.number)
        self._close()

    def kill(self, reason: str) -> None:
        self.zygote.kill(self.number, reason)

    async def ended(self, timeout_s: float) -> dict[str, Any]:
        try:
            async with asyncio.timeout(timeout_s):
                return await self.zygote.ended(self.number)
        except TimeoutError:
            self.zygote.replace("it does not answer")
            return {"error": "the warm interpreter did not end a run in time and was replaced"}

    def _close(self) -> None:
        self.control.close()
        self.out.close()
        self.err.close()


def first_words(control: socket.socket) -> tuple[dict[str, Any], int | None]:
    """What the run's process said before it gave way to the code, and its folder if that was asked for."""
    try:
        data, handles, _, _ = socket.recv_fds(control, 1 << 16, 1, MSG_CMSG_CLOEXEC)
    except OSError:
        return {}, None
    return (orjson.loads(data) if data else {}), (handles[0] if handles else None)


def last_line(stream: Capture) -> str:
    return bytes(stream.data).decode("utf-8", "replace").strip().rpartition("\n")[2] or "its process died"


def limits_on_the_wire(limits: ProgramLimits) -> dict[str, Any]:
    return {
        "wall_s": limits.wall_s,
        "cpu_s": limits.cpu_s,
        "test_cpu_s": 0,
        "memory_bytes": limits.memory_mb * MB,
        "disk_bytes": limits.disk_mb * MB,
        "processes": limits.processes,
        "open_files": limits.open_files,
    }


def job_of(
    kind: str,
    code: str,
    *,
    arguments: Sequence[str] = (),
    files: Mapping[str, bytes | str] | None = None,
    collect: bool = False,
    lines: bool = False,
    prelude: str = "",
    function: str | None = None,
    assertions: str | None = None,
    nonce: str = "",
) -> bytes:
    """What the run's process reads. `lines`: write each line at once, so that a run cut short shows how far it got."""
    placed = {}
    for name, content in (files or {}).items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise SandboxError(f"the file name {name!r} does not stay in the working folder")
        placed[str(path)] = {"text": writable(content)} if isinstance(content, str) else {"hex": content.hex()}
    return orjson.dumps(
        {
            "kind": kind,
            "code": writable(code),
            "arguments": [writable(argument) for argument in arguments],
            "files": placed,
            "collect": collect,
            "lines": lines,
            "prelude": prelude,
            "function": function,
            "assertions": assertions,
            "nonce": nonce,
        }
    )


def result_of(
    end: Mapping[str, Any],
    limits: ProgramLimits,
    out: Capture,
    err: Capture,
    *,
    compiled: bool = True,
    files: Mapping[str, bytes] | None = None,
) -> ProgramResult:
    """`end`: the wait status and the reason of a kill, as the warm interpreter told them."""
    code = os.waitstatus_to_exitcode(end["status"])
    verdict, note = _judge(code, end, limits, bytes(err.data[-400:]), compiled, out.full or err.full)
    return ProgramResult(
        verdict,
        bytes(out.data),
        bytes(err.data),
        exit_code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        wall_s=end["wall_s"],
        cpu_s=end["cpu_s"],
        memory_mb=max(end["peak_bytes"], 0) / MB,
        stdout_truncated=out.full,
        stderr_truncated=err.full,
        files=files or {},
        note=note,
    )


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
    """Add what a function returned. Without the nonce in front it is not what our side of the sandbox wrote."""
    if not reported.startswith(nonce.encode()):
        return result
    try:
        # Not orjson, which makes floats of large integers.
        return replace(result, value=json.loads(reported[len(nonce) :]), returned=True)
    except ValueError:
        return result


def written_arguments(arguments: Sequence[object]) -> bytes:
    """As `inside.cell.read_arguments` reads them."""
    try:
        if _is_json(list(arguments)):
            return b"j" + json.dumps(list(arguments)).encode()
        return b"p" + repr(list(arguments)).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise SandboxError(f"the arguments cannot be written: {error}") from error


def _is_json(value: object) -> bool:
    if isinstance(value, list):
        return all(map(_is_json, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(item) for key, item in value.items())
    return value is None or isinstance(value, bool | int | float | str)


def collect_files(folder: int, names: Sequence[str], most_bytes: int) -> dict[str, bytes]:
    """Plain files of the run's folder, by name. Links are not followed: they would be followed on our side."""
    found: dict[str, bytes] = {}
    for name in names:
        path = _inner_path(name)
        try:
            data = _read_below(folder, path.parts, most_bytes - sum(map(len, found.values())))
        except (OSError, ValueError):
            continue  # not there, not a plain file, or no name at all
        found[name] = data
    return found


def files_in(sent: bytes, names: Sequence[str]) -> dict[str, bytes]:
    """As `collect_files`, of what came out through a pipe: for each file a line with its name and size, then itself."""
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


def _inner_path(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise SandboxError(f"the file name {name!r} does not stay in the working folder")
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
