"""A seccomp filter: the system calls that model-written code may not make, as a BPF program.

Namespaces, an empty capability set and Landlock form the walls. This filter takes away the kernel interfaces through
which such walls have been broken before, and the network with them. A refused call fails like any call that is not
permitted, so programs get an ordinary `OSError`.

A BPF program is a list of instructions `(operation, jump if true, jump if false, value)`. A jump is the number of
instructions to skip. The kernel runs the program at every system call, on its number and arguments, until an
instruction returns.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from .syscalls import MACHINE, PR_SET_NO_NEW_PRIVS, prctl, syscall

_X86_64, _AARCH64 = 0, 1
_REFUSED: Final[dict[str, tuple[int, int | None]]] = {
    # name: number on x86-64, number on aarch64
    "ptrace": (101, 117), "syslog": (103, 116), "personality": (135, 92), "vhangup": (153, 58), "pivot_root": (155, 41),
    "adjtimex": (159, 171), "chroot": (161, 51), "acct": (163, 89), "settimeofday": (164, 170), "mount": (165, 40),
    "umount2": (166, 39), "swapon": (167, 224), "swapoff": (168, 225), "reboot": (169, 142), "sethostname": (170, 161),
    "setdomainname": (171, 162), "init_module": (175, 105), "delete_module": (176, 106), "quotactl": (179, 60),
    "nfsservctl": (180, 42), "lookup_dcookie": (212, 18), "clock_settime": (227, 112), "mbind": (237, 235),
    "set_mempolicy": (238, 237), "kexec_load": (246, 104), "add_key": (248, 217), "request_key": (249, 218),
    "keyctl": (250, 219), "migrate_pages": (256, 238), "unshare": (272, 97), "move_pages": (279, 239),
    "perf_event_open": (298, 241), "fanotify_init": (300, 262), "fanotify_mark": (301, 263),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "clock_adjtime": (305, 266), "setns": (308, 268),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272), "finit_module": (313, 273),
    "kexec_file_load": (320, 294), "bpf": (321, 280), "userfaultfd": (323, 282), "uselib": (134, None),
    "ustat": (136, None), "sysfs": (139, None), "modify_ldt": (154, None), "_sysctl": (156, None), "iopl": (172, None),
    "ioperm": (173, None), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "pidfd_getfd": (438, 438), "process_madvise": (440, 440),
    "mount_setattr": (442, 442), "quotactl_fd": (443, 443), "memfd_secret": (447, 447), "process_mrelease": (448, 448),
    "set_mempolicy_home_node": (450, 450),
    # Memory that belongs to no process, so that nobody could count it.
    "memfd_create": (319, 279), "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190), "io_setup": (206, 0),
    "seccomp": (317, 277), "landlock_create_ruleset": (444, 444), "landlock_add_rule": (445, 445),
    "landlock_restrict_self": (446, 446),
    # An access list of 64 KB for each file, which counts as nothing.
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    # They put pages into pipes and sockets instead of bytes. A page stays there, whole, when its owner has dropped it.
    "splice": (275, 76), "tee": (276, 77), "vmsplice": (278, 75), "sendfile": (40, 71),
    # They would show which files of the host are used; all runs and the host read the same ones.
    "inotify_init": (253, None), "inotify_init1": (294, 26), "inotify_add_watch": (254, 27),
}  # fmt: skip


class Machine(NamedTuple):
    column: int
    audit: int
    seccomp: int
    socket: int
    socketpair: int
    setsockopt: int
    clone: int
    prlimit: int
    prctl: int
    fcntl: int
    mmap: int


_MACHINES: Final = {
    "x86_64": Machine(_X86_64, 0xC000003E, 317, 41, 53, 54, clone=56, prlimit=302, prctl=157, fcntl=72, mmap=9),
    "aarch64": Machine(_AARCH64, 0xC00000B7, 277, 198, 199, 208, clone=220, prlimit=261, prctl=167, fcntl=25, mmap=222),
}
_CLONE3: Final = 435
_NEWEST: Final = 462
"""Calls with a higher number did not exist when this was written; they fail as if the kernel lacked them."""
_NEW_NAMESPACES: Final = 0x7E020000
"""Any CLONE_NEW* flag."""
_CLONE_FILES, _CLONE_PARENT, _CLONE_THREAD = 0x400, 0x8000, 0x10000
_AF_UNIX: Final = 1
_MAP_SHARED, _MAP_ANONYMOUS, _MAP_HUGETLB = 0x01, 0x20, 0x40000
_SOL_SOCKET: Final = 1
_SOCKET_OPTIONS: Final = (7, 32, 26, 50, 51, 52)
"""A larger send buffer (SO_SNDBUF, SO_SNDBUFFORCE) would hold more than the watch counts for a socket; filters
(SO_ATTACH_FILTER and its like) are memory of their own."""
_FCNTL_COMMANDS: Final = (1031, 1024, 1026)
"""F_SETPIPE_SZ, as for sockets. F_SETLEASE and F_NOTIFY show what others do with a file; a lease makes them wait."""
_PRCTL_OPTIONS: Final = (22, 78)
"""PR_SET_SECCOMP and PR_FUTEX_HASH allocate memory that nobody counts."""

_LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
_EQUAL: Final = 0x15
_GREATER_OR_EQUAL: Final = 0x35
_ANY_BIT: Final = 0x45
_RETURN: Final = 0x06
_ALLOW: Final = 0x7FFF0000
_KILL_PROCESS: Final = 0x80000000
# Offsets in struct seccomp_data, little-endian.
_NUMBER, _ARCHITECTURE = 0, 4
_FIRST_ARGUMENT, _SECOND_ARGUMENT, _THIRD_ARGUMENT, _FOURTH_ARGUMENT = 16, 24, 32, 40


def program() -> bytes:
    """The filter for this machine, as an array of `struct sock_filter`; empty for an unknown machine."""
    if (machine := _MACHINES.get(MACHINE)) is None:
        return b""

    def fail(code: int) -> tuple[int, int, int, int]:
        return _RETURN, 0, 0, 0x00050000 | code

    lines: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, machine.audit),
        (_RETURN, 0, 0, _KILL_PROCESS),  # 32-bit calls on a 64-bit kernel would bypass the list below
        (_LOAD, 0, 0, _NUMBER),
        (_GREATER_OR_EQUAL, 0, 1, _NEWEST + 1),  # the x32 calls too
        fail(errno.ENOSYS),
        # clone3 keeps its flags in memory, where a filter cannot look; libraries fall back to clone.
        (_EQUAL, 0, 1, _CLONE3),
        fail(errno.ENOSYS),
        (_EQUAL, 0, 6, machine.clone),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        # A child of the parent would be a child of the warm interpreter, which nobody counts to the run. A thread with
        # descriptors of its own would hold pipes where the watch does not look.
        (_ANY_BIT, 2, 0, _NEW_NAMESPACES | _CLONE_PARENT),
        (_ANY_BIT, 0, 2, _CLONE_THREAD),
        (_ANY_BIT, 1, 0, _CLONE_FILES),
        fail(errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    for number, only, refusal in (
        (machine.socket, _AF_UNIX, errno.ENETUNREACH),
        (machine.socketpair, _AF_UNIX, errno.ENETUNREACH),
        (machine.prlimit, 0, errno.EPERM),  # its own limits, not those of the process that runs the tests
    ):
        lines += [
            (_EQUAL, 0, 4, number),
            (_LOAD, 0, 0, _FIRST_ARGUMENT),
            (_EQUAL, 1, 0, only),
            fail(refusal),
            (_RETURN, 0, 0, _ALLOW),
        ]
    for number, place, values in (
        (machine.prctl, _FIRST_ARGUMENT, _PRCTL_OPTIONS),
        (machine.fcntl, _SECOND_ARGUMENT, _FCNTL_COMMANDS),
    ):
        lines += [(_EQUAL, 0, len(values) + 3, number), (_LOAD, 0, 0, place)]
        lines += _any_of(values)
        lines += [(_RETURN, 0, 0, _ALLOW), fail(errno.EPERM)]
    lines += [
        (_EQUAL, 0, len(_SOCKET_OPTIONS) + 5, machine.setsockopt),
        (_LOAD, 0, 0, _SECOND_ARGUMENT),
        (_EQUAL, 0, len(_SOCKET_OPTIONS) + 1, _SOL_SOCKET),
        (_LOAD, 0, 0, _THIRD_ARGUMENT),
        *_any_of(_SOCKET_OPTIONS),
        (_RETURN, 0, 0, _ALLOW),
        fail(errno.EPERM),
    ]
    lines += [
        # Shared memory without a file outlives the process that filled it, and is then counted nowhere. Neither are
        # huge pages.
        (_EQUAL, 0, 7, machine.mmap),
        (_LOAD, 0, 0, _FOURTH_ARGUMENT),
        (_ANY_BIT, 0, 1, _MAP_HUGETLB),
        fail(errno.ENOMEM),
        (_ANY_BIT, 0, 2, _MAP_ANONYMOUS),
        (_ANY_BIT, 0, 1, _MAP_SHARED),
        fail(errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    for numbers in _REFUSED.values():
        refused = numbers[machine.column]
        if refused is not None:
            lines += [(_EQUAL, 0, 1, refused), fail(errno.EPERM)]
    lines.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("HBBI", *line) for line in lines)


def _any_of(values: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """Skip the instruction behind these if one of the values is loaded."""
    return [(_EQUAL, len(values) - at, 0, value) for at, value in enumerate(values)]


def install(filter_program: bytes) -> None:
    """For this process and everything that it ever starts. It cannot be undone."""
    prctl(PR_SET_NO_NEW_PRIVS, 1, what="no_new_privs")
    code = ctypes.create_string_buffer(filter_program, len(filter_program))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(filter_program) // 8, ctypes.addressof(code)))
    set_mode_filter = 1
    syscall(_MACHINES[MACHINE].seccomp, set_mode_filter, 0, header, what="seccomp")
