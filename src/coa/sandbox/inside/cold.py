"""A run in a freshly started interpreter, for the sandboxes whose walls another program puts up."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import sys
import threading
from collections.abc import Sequence
from typing import Any, NoReturn

from . import cell, syscalls


def main(setup_handle: int, job_handle: int, control_handle: int, result_handle: int) -> None:
    with open(setup_handle, "rb") as file:
        setup: dict[str, Any] = json.loads(file.read())
    control = socket.socket(fileno=control_handle)
    if os.getpid() == 1 and (child := os.fork()):
        os.close(job_handle)
        _be_init(child, setup, control, result_handle)
    sys.path = [path for path in sys.path[1:] if path] + setup["site"]
    cell.add_site_builtins()
    writable = tuple(path for path in setup["writable"] if os.path.isdir(path))
    locks = cell.Locks.here(writable, own_bytes=32 << 20, own_resident_bytes=0)
    os.chdir(setup["work"])
    control.set_inheritable(False)
    if result_handle >= 0:
        os.set_inheritable(result_handle, False)

    def wall_in() -> None:
        cell.lock(setup["limits"], locks)
        cell.limit_run(setup["limits"])

    cell.obey(job_handle, control, wall_in, result_handle)


def _be_init(child: int, setup: dict[str, Any], control: socket.socket, result: int) -> NoReturn:
    """Act as process number 1 where the walls provide none: collect orphans, and end the run when nobody waits for it.

    The code itself cannot be process 1: signals that it sends to itself would have no effect.
    """
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)  # not to be looked into from the run
    if not setup["collect"]:
        os.close(result)
    threading.Thread(target=_leave_with, args=(control,), daemon=True).start()
    ended = status = 0
    while ended != child:
        ended, status = os.wait()
    if setup["collect"]:
        _send_files(setup["work"], setup["collect"], setup["limits"]["disk_bytes"], result)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def _leave_with(control: socket.socket) -> None:
    """The supervisor never writes, so the end of the wait means that it is gone. The run ends with process 1."""
    with contextlib.suppress(ConnectionError):  # if it left without having read everything
        control.recv(1)
    os._exit(1)


def _send_files(work: str, names: Sequence[str], most_bytes: int, result: int) -> None:
    """Send plain files. A file that no longer fits is left out."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, 9)  # from here on nothing writes
    with open(result, "wb") as out:
        for name in names:
            path = os.path.join(work, name)
            if os.path.realpath(path) != os.path.normpath(path):
                continue
            try:
                handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            except OSError:
                continue
            with open(handle, "rb") as file:
                about = os.fstat(handle)
                if not stat.S_ISREG(about.st_mode) or about.st_size > most_bytes:
                    continue
                data = file.read()
            most_bytes -= len(data)
            out.write(json.dumps({"name": name, "size": len(data)}).encode() + b"\n" + data)
