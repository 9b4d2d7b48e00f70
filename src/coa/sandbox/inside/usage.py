"""The CPU time and memory that all processes of a run use together, read from /proc."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

PAGE = os.sysconf("SC_PAGE_SIZE")
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Used:
    cpu: dict[int, float] = field(default_factory=dict)
    """Seconds by process, including those of children that it has waited for."""
    resident: dict[int, int] = field(default_factory=dict)
    """Bytes by process; shared pages are counted in each process."""

    @property
    def cpu_s(self) -> float:
        return sum(self.cpu.values())


def usage(roots: Mapping[int, int]) -> dict[int, Used]:
    """`roots` maps a process to the number of the run; all processes of the run descend from it."""
    parents: dict[int, int] = {}
    cpu: dict[int, float] = {}
    resident: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or name == "1":
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue  # it ended in between
        pid = int(name)
        parents[pid] = int(fields[1])
        cpu[pid] = sum(map(int, fields[11:15])) / CLOCK_TICKS
        resident[pid] = int(fields[21]) * PAGE
    used = {number: Used() for number in roots.values()}
    for pid in parents:
        top = pid
        while top not in roots and top in parents:
            top = parents[top]
        if top in roots:
            of_run = used[roots[top]]
            of_run.cpu[pid] = cpu[pid]
            of_run.resident[pid] = resident[pid]
    return used


def memory_of(used: Used, limit: int, shared: int = 0) -> int:
    """Bytes of memory; `shared` is what the first process has in common with the one it was forked from.

    The quick sum counts shared pages in every process. Only if it exceeds the limit is the exact sum read, which takes
    longer.
    """
    quick = max(sum(used.resident.values()) - shared, 0)
    return quick if quick <= limit else sum(map(_proportional, used.resident))


def _proportional(pid: int) -> int:
    """Resident memory in which a page shared by n processes counts 1/n."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            return sum(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))
    except (OSError, ValueError):
        return 0
