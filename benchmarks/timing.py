"""The best of several runs: on a shared machine the others measure the neighbours."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable


def best_seconds(work: Callable[[], object], *, repeats: int = 5) -> float:
    best = float("inf")
    for _ in range(repeats):
        gc.collect()
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best
