"""The system calls that Python 3.11 has no function for."""

from __future__ import annotations

import ctypes
import os
import platform
from typing import Final

# Constants and their values as in the kernel's headers.
CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE, MNT_DETACH = 4096, 16384, 1 << 18, 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 24, 36, 38

MACHINE: Final = platform.machine()
# Calls younger than 2011 have one number on every architecture.
_MOUNT_SETATTR: Final = 442
_PIVOT_ROOT: Final = {"x86_64": 155, "aarch64": 41}
_CAPSET: Final = {"x86_64": 126, "aarch64": 91}

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)
_syscall: Final = _libc.syscall
_syscall.restype = ctypes.c_long


def check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def syscall(number: int, *arguments: int | bytes | ctypes.Array[ctypes.c_char] | None, what: str) -> int:
    plain = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
    return check(int(_syscall(ctypes.c_long(number), *plain)), what)


def unshare(flags: int) -> None:
    check(_libc.unshare(flags), f"unshare({flags:#x})")


def setns(descriptor: int, kind: int) -> None:
    check(_libc.setns(descriptor, kind), "setns")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    texts = source.encode(), target.encode(), kind.encode() or None
    check(_libc.mount(*texts, flags, options.encode() or None), f"mount {source} on {target}")


def unmount(target: str) -> None:
    check(_libc.umount2(target.encode(), MNT_DETACH), f"umount {target}")


def make_read_only(target: str) -> None:
    """Make a mount and all below it read-only and without set-user-id programs."""
    attributes = (ctypes.c_uint64 * 4)(MS_RDONLY | MS_NOSUID, 0, 0, 0)
    here, recursive = -100, 0x8000  # AT_FDCWD, AT_RECURSIVE
    change = (ctypes.addressof(attributes), ctypes.sizeof(attributes))
    syscall(_MOUNT_SETATTR, here, target.encode(), recursive, *change, what=f"mount_setattr {target}")


def pivot_root(new_root: str) -> None:
    """`new_root` becomes /; the old root is gone from this mount namespace."""
    os.chdir(new_root)
    syscall(_PIVOT_ROOT[MACHINE], b".", b".", what="pivot_root")
    unmount(".")
    os.chdir("/")


def prctl(option: int, argument: int = 0, *, what: str = "prctl") -> None:
    unused = ctypes.c_ulong(0)
    check(_libc.prctl(option, ctypes.c_ulong(argument), unused, unused, unused), what)


def set_host_name(name: bytes) -> None:
    check(_libc.sethostname(name, len(name)), "sethostname")


def drop_capabilities() -> None:
    """Drop all capabilities for good: no program that is started from here can get one back."""
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            break  # past the last one this kernel knows
    version_3 = 0x20080522
    header = (ctypes.c_uint32 * 2)(version_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    check(int(_syscall(ctypes.c_long(_CAPSET[MACHINE]), header, nothing)), "capset")


def die_with_parent(parent: int) -> None:
    """Call this after the last change of user or capabilities, which would undo it."""
    prctl(PR_SET_PDEATHSIG, 9)
    if os.getppid() != parent:  # it died in between
        os._exit(1)
