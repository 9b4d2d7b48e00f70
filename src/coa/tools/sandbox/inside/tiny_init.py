"""Process number 1 of a run: collects orphans and otherwise sleeps until it is killed, and the run with it.

A forked interpreter could do that too, at the price of a second copy of a large page table in every run. On x86-64 it
is therefore a program of 200 bytes; elsewhere it is `sleep`, under which dead orphans stay until the run ends.
"""

from __future__ import annotations

import os
import shutil
import struct

from .syscalls import MACHINE

_ADDRESS = 0x400000
_HEADERS = 64 + 56


def write_init(path: str) -> None:
    if MACHINE == "x86_64":
        with open(path, "wb") as file:
            file.write(_elf())
    else:
        shutil.copy(shutil.which("sleep") or "/bin/sleep", path)
    os.chmod(path, 0o555)


def arguments() -> list[str]:
    return ["init"] if MACHINE == "x86_64" else ["sleep", "infinity"]


def _elf() -> bytes:
    code = b"".join(
        (
            b"\xb8\x0d\x00\x00\x00",  # mov eax, rt_sigaction
            b"\xbf\x11\x00\x00\x00",  # mov edi, SIGCHLD
            b"\xbe" + struct.pack("<I", _ADDRESS + _HEADERS + 35),  # mov esi, action
            b"\x31\xd2",  # xor edx, edx
            b"\x41\xba\x08\x00\x00\x00",  # mov r10d, 8
            b"\x0f\x05",  # syscall
            b"\xb8\x22\x00\x00\x00",  # mov eax, pause
            b"\x0f\x05",  # syscall
            b"\xeb\xf7",  # jmp to the mov before
            b"\x90",
        )
    )
    action = struct.pack("<QQQQ", 1, 0, 0, 0)  # SIG_IGN: the kernel then collects dead children by itself
    size = _HEADERS + len(code) + len(action)
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, _ADDRESS + _HEADERS, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _ADDRESS, _ADDRESS, size, size, 4096)
    return header + segment + code + action
