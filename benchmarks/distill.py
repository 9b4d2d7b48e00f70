"""Team runs per second through convert and filter, and the peak of memory, which must not grow with their number.

Each size runs in a process of its own, so that its peak is its own. Time is the processor's, without making the runs:
on a shared machine the clock on the wall measures the neighbours.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from benchmarks.results import Figure, save
from benchmarks.team_runs import team_runs
from coa.distill.config import DistillConfig
from coa.distill.pipeline import Distillery
from coa.distill.team_run import TeamRun
from coa.models.tokenizer import load_tokenizer
from coa.scoring import scorer_for
from coa.trajectory import load_profile

TOKENIZED = "tokenized"
KINDS = {"plain": "without a tokenizer", TOKENIZED: "with length by tokenizer"}
SIZES = {"plain": (10_000, 100_000), TOKENIZED: (1_000, 10_000)}


class Unclocked:
    """Runs as they are made, and how long making them took."""

    def __init__(self, runs: Iterable[TeamRun]) -> None:
        self._runs = iter(runs)
        self.seconds = 0.0

    def __iter__(self) -> Iterator[TeamRun]:
        while True:
            start = time.process_time()
            run = next(self._runs, None)
            self.seconds += time.process_time() - start
            if run is None:
                return
            yield run


def measure(count: int, *, tokenized: bool) -> tuple[float, float]:
    """Runs a CPU second and the peak of memory in MB."""
    runs = Unclocked(team_runs(count))
    distillery = Distillery(
        load_profile("web"),
        DistillConfig(),
        scorer_for("auto"),
        tokenizer=load_tokenizer("smollm2") if tokenized else None,
    )
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        found = asyncio.run(distillery.run(runs, Path(folder)))
        seconds = time.process_time() - start - runs.seconds
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    what = "with length by tokenizer" if tokenized else "without tokenizer"
    print(f"{count:>7,} runs {what:<25} {count / seconds:6.0f} runs a CPU second   peak {peak:5.0f} MB   ", end="")
    print(f"{found.kept:,} kept")
    return count / seconds, peak


def main() -> None:
    if len(sys.argv) == 3:
        measure(int(sys.argv[1]), tokenized=sys.argv[2] == TOKENIZED)
        return
    figures = list[Figure]()
    for kind, what in KINDS.items():
        peaks, (small, large) = [], SIZES[kind]
        for size in (small, large):
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                speed, peak = process.submit(measure, size, tokenized=kind == TOKENIZED).result()
            peaks.append(peak)
            figures.append(Figure(f"{size:,} team runs, {what}", speed, "runs a CPU second"))
            figures.append(Figure(f"{size:,} team runs, {what}: peak memory", peak, "MB"))
        grown = peaks[-1] / peaks[0]
        figures.append(Figure(f"peak memory of {large:,} team runs, {what}", grown, "x", f"{small:,}", "about 1"))
    save("distill", "python -m benchmarks.distill", figures)


if __name__ == "__main__":
    main()
