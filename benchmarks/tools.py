"""Local index: build and query rates, memory and disk, and how they grow. Cache: calls a second.

    python -m benchmarks.tools [SIZE ...]      passages; without a size 100,000, with bm25s beside

Each index is built in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pydantic import JsonValue

from benchmarks.passages import queries, write_jsonl
from coa.tools import Observation, ToolContext
from coa.trajectory import Form, Shape, Task

QUERIES = 300
CALLS = 5000


class Instant:
    about = "answers."
    shape = Shape(form=Form.LINE)
    timeout_s = 10.0
    uses = ()
    settings = "instant"

    async def call(self, arguments: Mapping[str, JsonValue], context: ToolContext) -> Observation:
        return Observation("Brannock Head: the north light was first lit in 1871. " * 40)


def ours(corpus: Path, folder: Path) -> tuple[float, Callable[[str], object]]:
    from coa.tools.index import Index, Sources, build

    start = time.perf_counter()
    build(Sources([corpus]), folder / "coa")
    built = time.perf_counter() - start
    index = Index(folder / "coa")
    return built, lambda query: index.search(query, 5)


def bm25s(corpus: Path, folder: Path) -> tuple[float, Callable[[str], object]]:
    import bm25s as other

    start = time.perf_counter()
    with corpus.open() as file:
        texts = [f"{row['title']}\n{row['text']}" for row in map(json.loads, file)]
    built = other.BM25()
    built.index(other.tokenize(texts, stopwords="en", show_progress=False), show_progress=False)
    built.save(folder / "bm25s", corpus=texts)
    took = time.perf_counter() - start
    loaded = other.BM25.load(folder / "bm25s", mmap=True, load_corpus=True)

    def search(query: str) -> object:
        return loaded.retrieve(other.tokenize(query, stopwords="en", show_progress=False), k=5, show_progress=False)

    return took, search


def measure(engine: str, corpus: Path) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=corpus.parent) as folder:
        built, search = {"coa": ours, "bm25s": bm25s}[engine](corpus, Path(folder))
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        disk = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()) / 1e6
        asked = queries(QUERIES)
        for query in asked[:30]:
            search(query)
        rates = []
        for threads in (1, 2):
            start = time.perf_counter()
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(search, asked))
            rates.append(QUERIES / (time.perf_counter() - start))
    return {"build_s": built, "memory": memory, "disk": disk, "rate_1": rates[0], "rate_2": rates[1]}


def index(sizes: list[int]) -> None:
    print("                    passages   build s  passages/s  peak MB  disk MB  queries/s: 1 thread  2 threads")
    rows: list[tuple[int, dict[str, float]]] = []
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="coa-bench-") as folder:
            corpus = Path(folder) / "corpus.jsonl"
            write_jsonl(corpus, size)
            for engine in ("coa", "bm25s") if size <= 100_000 else ("coa",):
                command = [sys.executable, "-m", "benchmarks.tools", "--measure", engine, str(corpus)]
                done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
                row: dict[str, float] = json.loads(done.stdout)
                print(
                    f"  {engine:<12} {size:>13,} {row['build_s']:>9.1f} {size / row['build_s']:>11,.0f} "
                    f"{row['memory']:>8.0f} {row['disk']:>8.0f} {row['rate_1']:>20.0f} {row['rate_2']:>10.0f}"
                )
                if engine == "coa":
                    rows.append((size, row))
    for (small, before), (large, after) in itertools.pairwise(rows):
        scale = math.log(large / small)
        grown = {
            "build time": math.log(after["build_s"] / before["build_s"]) / scale,
            "time of a query": math.log(before["rate_1"] / after["rate_1"]) / scale,
            "peak memory": math.log(after["memory"] / before["memory"]) / scale,
        }
        told = ", ".join(f"{name} {exponent:.2f}" for name, exponent in grown.items())
        print(f"  growth from {small:,} to {large:,} passages (1.0 is linear): {told}")


async def cache(path: Path) -> None:
    from coa.tools.cache import Cache
    from coa.tools.recorded import RecordedTool, replayed

    context = ToolContext(Task(id="1", question="q"))
    kept = Cache(path)
    tool = RecordedTool("instant", Instant(), kept)
    replaying = replayed(kept, ["instant"]).tools["instant"]
    for what, call in (("recorded", tool.call), ("answered", tool.call), ("replayed", replaying.call)):
        start = time.perf_counter()
        for first in range(0, CALLS, 50):
            await asyncio.gather(*(call({"text": str(n)}, context) for n in range(first, first + 50)))
        print(f"  cached tool calls, {what:<9} {CALLS / (time.perf_counter() - start):>9,.0f} calls/s")
    kept.close()


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(sys.argv[2], Path(sys.argv[3]))))
        return
    index([int(size) for size in sys.argv[1:]] or [100_000])
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(cache(Path(folder) / "cache.sqlite"))


if __name__ == "__main__":
    main()
