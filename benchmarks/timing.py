"""Times on a machine that others use, too: the best of several runs, CPU seconds, and how busy the others were."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

_TICK: Final = 1 / os.sysconf("SC_CLK_TCK")
_IDLE: Final = (3, 4)
"""Places of idle time and of waiting for a disk in the first line of /proc/stat."""
_GUEST: Final = 8
"""From here on, the times are parts of those before."""


def best_seconds(work: Callable[[], object], *, repeats: int = 5) -> float:
    best = float("inf")
    for _ in range(repeats):
        gc.collect()
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def cpu_seconds(root: int) -> float:
    """Of a process and all that it has started, which may still run."""
    parents, spent = dict[int, int](), dict[int, float]()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
            spent[int(entry.name)] = _TICK * sum(map(int, fields[11:15]))  # children that have ended, too

    def below(number: int) -> bool:
        while number not in (root, 0, 1):
            number = parents.get(number, 0)
        return number == root

    return sum(seconds for number, seconds in spent.items() if below(number))


class OtherLoad:
    """How many cores were kept busy, on average since it was made, by other processes or other virtual machines."""

    def __init__(self) -> None:
        self._began, self._busy, self._own = time.monotonic(), busy_seconds(), cpu_seconds(os.getpid())

    def cores(self) -> float:
        busy, own = busy_seconds() - self._busy, cpu_seconds(os.getpid()) - self._own
        return max(busy - own, 0.0) / max(time.monotonic() - self._began, 1e-9)


def busy_seconds(stat: Path = Path("/proc/stat")) -> float:
    """Of all cores since the machine started; 0 where the kernel does not tell."""
    try:
        times = list(map(int, stat.read_text().partition("\n")[0].split()[1:]))
    except OSError:
        return 0.0
    return _TICK * sum(spent for place, spent in enumerate(times[:_GUEST]) if place not in _IDLE)
