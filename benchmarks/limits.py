"""What this machine does at best: matrix products and reading memory. What is measured is held against that."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch

GEMM: Final = "matrix multiplication"
MEMORY: Final = "reading memory"


@dataclass(frozen=True)
class Limits:
    """Of the threads that torch uses, the most operations and bytes in a second of the clock that was chosen."""

    flops: float
    bytes: float

    def of_pass(self, weights: int, rows: int, width: int) -> tuple[float, str]:
        """The least time of a pass that multiplies each row with all weights of this width in bytes, and what takes
        that time."""
        multiplying, reading = 2 * weights * rows / self.flops, weights * width / self.bytes
        return (multiplying, GEMM) if multiplying > reading else (reading, MEMORY)


def measure_limits(
    dtype: torch.dtype = torch.float32, *, rows: int = 256, clock: Callable[[], float] = time.perf_counter
) -> Limits:
    """With weights that are packed for oneDNN, in the shape of SmolLM2's largest product of a layer."""
    weight = torch.ops.mkldnn._reorder_linear_weight(torch.randn(3072, 576).to(dtype))
    x, size = torch.randn(rows, 576).to(dtype), 1 << 28
    memory = torch.ones(size // 4)

    def multiply() -> None:
        for _ in range(20):
            torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")

    flops = 20 * 2 * rows * 3072 * 576 / least_seconds(multiply, clock)
    return Limits(flops, size / least_seconds(memory.sum, clock))


def least_seconds(work: Callable[[], object], clock: Callable[[], float], *, repeats: int = 5) -> float:
    least = float("inf")
    for _ in range(repeats):
        start = clock()
        work()
        least = min(least, clock() - start)
    return least
