"""Process number 1 of a run: it collects orphans and otherwise sleeps until it is killed, and the run with it.

It waits for the orphans so that their CPU time is added to its CPU time; ignoring SIGCHLD would lose it. A forked
interpreter could do the same, but every run would then hold a second copy of a large page table. On x86-64 it is
therefore a program of 200 bytes; elsewhere it is `sleep`, under which dead orphans stay until the run ends.
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
    signals = struct.pack("<Q", 1 << 16)  # SIGCHLD
    at = struct.pack("<I", _ADDRESS + _HEADERS)  # they are placed before the code
    code = b"".join(
        (
            b"\xb8\x0e\x00\x00\x00",  # mov eax, rt_sigprocmask
            b"\x31\xff",  # xor edi, edi (SIG_BLOCK)
            b"\xbe" + at,  # mov esi, signals
            b"\x31\xd2",  # xor edx, edx
            b"\x41\xba\x08\x00\x00\x00",  # mov r10d, 8
            b"\x0f\x05",  # syscall
            b"\xb8\x80\x00\x00\x00",  # wait: mov eax, rt_sigtimedwait
            b"\xbf" + at,  # mov edi, signals
            b"\x31\xf6",  # xor esi, esi
            b"\x31\xd2",  # xor edx, edx
            b"\x41\xba\x08\x00\x00\x00",  # mov r10d, 8
            b"\x0f\x05",  # syscall
            b"\xb8\x3d\x00\x00\x00",  # collect: mov eax, wait4
            b"\x48\xc7\xc7\xff\xff\xff\xff",  # mov rdi, -1
            b"\x31\xf6",  # xor esi, esi
            b"\xba\x01\x00\x00\x00",  # mov edx, WNOHANG
            b"\x45\x31\xd2",  # xor r10d, r10d
            b"\x0f\x05",  # syscall
            b"\x85\xc0",  # test eax, eax
            b"\x7f\xe4",  # jg collect
            b"\xeb\xcc",  # jmp wait
        )
    )
    size = _HEADERS + len(signals) + len(code)
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, _ADDRESS + _HEADERS + len(signals), 64, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _ADDRESS, _ADDRESS, size, size, 4096)
    return header + segment + signals + code
