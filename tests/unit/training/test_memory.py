"""Freed memory goes back to the system, where nobody has chosen otherwise."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, os
from coa.training.memory import give_back_large_blocks
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
def block(size):
    made = libc.malloc(size)
    ctypes.memset(made, 1, size)
    return made
print(give_back_large_blocks())
for _ in range(2):  # glibc learns from the first what it will not map again
    libc.free(block(30 << 20))
large, small = zip(*[(block(12 << 20), block(64 << 10)) for _ in range(16)])
full = resident()
for one in large:
    libc.free(one)
print((full - resident()) >> 20)
"""


def freed(**environment: str) -> tuple[bool, int]:
    """Whether it was set, and how many of 192 MB that lay between small blocks came back."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    was_set, megabytes = done.stdout.split()
    return was_set == "True", int(megabytes)


glibc_only = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")


@glibc_only
def test_blocks_between_others_that_live_come_back() -> None:
    was_set, megabytes = freed()
    assert was_set and megabytes > 180


@glibc_only
def test_what_the_user_has_set_stays() -> None:
    was_set, megabytes = freed(MALLOC_MMAP_THRESHOLD_="33554432")
    assert not was_set and megabytes < 20
