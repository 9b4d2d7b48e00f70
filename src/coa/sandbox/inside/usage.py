"""The CPU time and memory that all processes of a run use together, read from /proc.

Memory is more than the pages of the processes. The kernel keeps page tables, pipes and sockets full of data, and lists
of mappings, locks and watches for a program, and none of that is in the resident size of a process. `usage` reads what
must be known at every look; `Holdings` counts what takes longer to read, a few processes at each look. What can be
counted nowhere is refused instead (seccomp.py).
"""

from __future__ import annotations

import os
import re
import socket
import stat
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

PAGE = os.sysconf("SC_PAGE_SIZE")
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")

# What the kernel keeps for one of each, in bytes, rounded up.
_THREAD = 32 << 10
_MAPPING = 512
_ANCESTOR = 64
"""For each mapping, and for each process from which it was inherited."""
_DESCRIPTOR = 1 << 10
_ENTRY = 256
"""A lock on a part of a file, or a watch of epoll. A program may take one for every byte of every file."""
_PIPE = 64 << 10
"""Programs cannot enlarge it, because F_SETPIPE_SZ is refused."""

SCAN_S = 0.005
"""How long one look may count what takes longer; at least one process is counted at each."""
RESCAN_S = 0.2

_FIELDS = re.compile(rb"^(VmRSS|VmSwap|VmPTE|HugetlbPages):\s+(\d+)", re.MULTILINE)


@dataclass
class Used:
    cpu: dict[int, float] = field(default_factory=dict)
    """Seconds by process, including those of children that it has waited for."""
    resident: dict[int, int] = field(default_factory=dict)
    """Bytes by process, in memory or swapped out; shared pages are counted in each process."""
    tasks: dict[int, int] = field(default_factory=dict)
    """By process, the thread under whose number /proc shows the memory: another one once the first has ended."""
    held_bytes: int = 0
    """What the kernel holds for page tables and threads, and what the watch adds to it."""

    @property
    def cpu_s(self) -> float:
        return sum(self.cpu.values())


class _Stat(NamedTuple):
    parent: int
    cpu_s: float
    threads: int
    ended: bool


def usage(roots: Mapping[int, int]) -> dict[int, Used]:
    """`roots` maps a process to the number of the run; all processes of the run descend from it."""
    stats: dict[int, _Stat] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or name == "1":
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue  # it ended in between
        cpu_s = sum(map(int, fields[11:15])) / CLOCK_TICKS
        stats[int(name)] = _Stat(int(fields[1]), cpu_s, int(fields[17]), fields[0] == b"Z")
    used = {number: Used() for number in roots.values()}
    for pid, about in stats.items():
        top = pid
        while top not in roots and top in stats:
            top = stats[top].parent
        if top in roots:
            of_run = used[roots[top]]
            of_run.cpu[pid] = about.cpu_s
            of_run.tasks[pid], of_run.resident[pid], tables = _memory(pid, about)
            of_run.held_bytes += tables + about.threads * _THREAD
    return used


def _memory(pid: int, about: _Stat) -> tuple[int, int, int]:
    """The thread that shows the memory, the bytes of the process in memory or swap, and the bytes of its page tables.

    When the first thread of a process has ended, /proc shows no memory under its number, though the others go on.
    """
    for task in (pid,) if not about.ended else _threads(pid) if about.threads > 1 else ():
        with suppress(OSError), open(f"/proc/{task}/status", "rb") as file:
            sizes = {name: int(kilobytes) * 1024 for name, kilobytes in _FIELDS.findall(file.read())}
            if sizes:
                tables = sizes.pop(b"VmPTE", 0)
                return task, sum(sizes.values()), tables
    return pid, 0, 0


def _threads(pid: int) -> Iterable[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task") if int(name) != pid]
    except OSError:
        return ()


class _Scan(NamedTuple):
    when: float
    pipes: frozenset[tuple[int, int]]
    mappings: int
    other_bytes: int


class Holdings:
    """What the kernel holds for the processes of one run, as far as it takes longer to count.

    That is pipes, mappings, locks on files, and watches of epoll.

    A process is counted when it is first seen and again after `RESCAN_S`. If there is no time for all of them in one
    look, the others have their turn at the next. `begun` are processes that have just begun and hold nothing yet.
    """

    def __init__(self, begun: Iterable[int] = ()) -> None:
        now = time.monotonic()
        self._scans = {pid: _Scan(now, frozenset(), 0, 0) for pid in begun}

    def bytes_of(self, used: Used) -> int:
        began = time.monotonic()
        self._scans = {pid: scan for pid, scan in self._scans.items() if pid in used.tasks}
        never = _Scan(-RESCAN_S, frozenset(), 0, 0)
        for pid in sorted(used.tasks, key=lambda pid: self._scans.get(pid, never).when):
            if began - self._scans.get(pid, never).when < RESCAN_S:
                break
            self._scans[pid] = _scan(used.tasks[pid])
            if time.monotonic() - began > SCAN_S:
                break
        scans = self._scans.values()
        pipes = set[tuple[int, int]]().union(*(scan.pipes for scan in scans))  # a pipe is mostly in several processes
        mapping = _MAPPING + _ANCESTOR * len(used.tasks)
        return len(pipes) * _PIPE + sum(scan.mappings * mapping + scan.other_bytes for scan in scans)


def _scan(pid: int) -> _Scan:
    pipes: set[tuple[int, int]] = set()
    descriptors = entries = mappings = 0
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            descriptors += 1
            place = f"/proc/{pid}/fd/{name}"
            with suppress(OSError):
                link = os.readlink(place)
                if link.startswith("socket:"):
                    continue  # counted in the network namespace
                about = os.stat(place)
                if stat.S_ISFIFO(about.st_mode):
                    pipes.add((about.st_dev, about.st_ino))
                elif link.startswith("/") or link == "anon_inode:[eventpoll]":
                    entries += _lines(f"/proc/{pid}/fdinfo/{name}")
    with suppress(OSError):
        mappings = _lines(f"/proc/{pid}/maps")
    return _Scan(time.monotonic(), frozenset(pipes), mappings, descriptors * _DESCRIPTOR + entries * _ENTRY)


def _lines(path: str) -> int:
    count = 0
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(1 << 16):
            count += chunk.count(b"\n")
    return count


def socket_bytes() -> int:
    """The most that the kernel holds for one socket: a sender whose buffer is not full may send one more full one."""
    with socket.socket(socket.AF_UNIX) as example:
        return 2 * example.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)


def open_sockets(sockstat: str | bytes) -> int:
    """The number of sockets in a network namespace, from its `/proc/net/sockstat`.

    It has those too that no process holds: on their way through another socket, not yet accepted, or closed while the
    other side has not read everything.
    """
    return int(sockstat.split()[2])


def sockets_of(pids: Iterable[int]) -> int:
    """The number of sockets in the network namespace of a run; 0 if it shares ours."""
    ours = os.stat("/proc/self/ns/net").st_ino
    for pid in pids:
        with suppress(OSError):
            if os.stat(f"/proc/{pid}/ns/net").st_ino != ours:
                with open(f"/proc/{pid}/net/sockstat", "rb") as file:
                    return open_sockets(file.read())
    return 0


def memory_of(used: Used, limit: int, shared: int = 0) -> int:
    """Bytes of memory; `shared` is what the first process has in common with the one it was forked from.

    The quick sum counts shared pages in every process. Only if it exceeds the limit is the exact sum read, which takes
    longer.
    """
    quick = max(sum(used.resident.values()) - shared, 0) + used.held_bytes
    if quick <= limit:
        return quick
    return used.held_bytes + sum(_proportional(task, used.resident[pid]) for pid, task in used.tasks.items())


def _proportional(task: int, resident: int) -> int:
    """Resident memory in which a page shared by n processes counts 1/n."""
    try:
        with open(f"/proc/{task}/smaps_rollup") as file:
            return sum(int(line.split()[1]) * 1024 for line in file if line.startswith(("Pss:", "SwapPss:")))
    except (FileNotFoundError, ProcessLookupError):
        return 0  # it ended
    except (OSError, ValueError):
        return resident
