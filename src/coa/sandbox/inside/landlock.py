"""Landlock: a second lock on the file system, on sockets of other runs and on signals, if the kernel supports it."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence
from typing import Final

from .syscalls import PR_SET_NO_NEW_PRIVS, prctl, syscall

_CREATE, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_READ_ONLY: Final = 0b1101  # execute, read file, read directory
_FILES_BY_VERSION: Final = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""How many file-system rights each version of the interface knows."""
_ON_A_FILE: Final = 0b1000000000000111 | (1 << 14)
"""The rights that make sense for something that is not a directory."""


def version() -> int:
    """The version of Landlock in the kernel; 0 if it has none."""
    try:
        return syscall(_CREATE, None, 0, 1, what="landlock")
    except OSError:
        return 0


def restrict(writable: Sequence[str], *, known: int) -> None:
    """From now on everything may be read, only `writable` may be changed, and nothing outside can be reached.

    `known` is the result of `version`, which is determined once and not for every run.
    """
    files = (1 << _FILES_BY_VERSION.get(known, 16)) - 1
    network = 0b11 if known >= 4 else 0
    scopes = 0b11 if known >= 6 else 0  # abstract sockets and signals stay inside
    attributes = struct.pack("QQQ", files, network, scopes)
    size = 24 if known >= 6 else 16 if known >= 4 else 8
    rules = syscall(_CREATE, attributes, size, 0, what="landlock_create_ruleset")
    try:
        _allow(rules, "/", _READ_ONLY & files)
        for path in writable:
            _allow(rules, path, files if os.path.isdir(path) else files & _ON_A_FILE)
        prctl(PR_SET_NO_NEW_PRIVS, 1, what="no_new_privs")
        syscall(_RESTRICT_SELF, rules, 0, what="landlock_restrict_self")
    finally:
        os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        # A packed structure: eight bytes of rights, four of descriptor.
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, place), 12)
        syscall(_ADD_RULE, rules, 1, rule, 0, what=f"landlock rule for {path}")
    finally:
        os.close(place)
