"""A run in a freshly started interpreter, for the back-ends whose walls are put up by another program."""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Any

from . import cell, landlock, seccomp


def main(setup_handle: int, job_handle: int, control_handle: int, result_handle: int) -> None:
    with open(setup_handle, "rb") as file:
        setup: dict[str, Any] = json.loads(file.read())
    sys.path = [path for path in sys.path[1:] if path] + setup["site"]
    cell.add_site_builtins()
    locks = cell.Locks(
        seccomp=seccomp.program() if seccomp.known() else b"",
        landlock=landlock.version(),
        writable=tuple(path for path in setup["writable"] if os.path.isdir(path)),
        own_bytes=32 << 20,
        own_resident_bytes=0,
    )
    os.chdir(setup["work"])
    control = socket.socket(fileno=control_handle)
    control.set_inheritable(False)
    if result_handle >= 0:
        os.set_inheritable(result_handle, False)
    cell.obey(job_handle, control, lambda: cell.lock(setup["limits"], locks), result_handle)
