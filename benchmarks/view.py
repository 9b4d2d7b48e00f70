"""The viewer on a folder of many runs: how fast it is indexed, how long a page waits, how much memory it takes.

    python -m benchmarks.view 1000 100000 --kilobytes 20

Runs are made up: 50,000 different words with the frequencies of a natural language, no token ids, so that nearly every
byte is text for the full-text index. For each number of runs a viewer is started on an index that exists already, and
its first page is timed; then pages of the list, filters, sorting and searches. Server times are those of whole HTTP
requests from this process, the median and the largest of each kind.

With `--inspect N`, `inspect view` shows the same N runs as one log, and the same Chromium opens both lists. Inspect is
installed into an environment of its own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import orjson

from benchmarks.peers import inspect_python
from coa.trajectory.definitions import definition
from coa.trajectory.profile import load_profile

_WORDS: Final = 50_000
_QUERIES: Final = {
    "a page of the list": "limit=50&offset={offset}",
    "sorted by tokens": "sort=-tokens&limit=50&offset={offset}",
    "filter: wrong, with a tool error": "outcome=wrong&tool_error=1&limit=50",
    "filter: agent used": "agent=crawl_page&sort=-seconds&limit=50",
    "filter: token range and family": "min_tokens=9000&max_tokens=9500&family=f3&limit=50",
    "search: a rare word": "q={rare}&limit=50",
    "search: two common words": "q={common}&limit=50",
    "search: a phrase": "q=%22{phrase}%22&limit=50",
}


def write_runs(path: Path, count: int, kilobytes: int, seed: int = 1) -> None:
    """Plain JSON lines: validating 100,000 made-up runs would take longer than indexing them."""
    rng = random.Random(seed)
    words, weights = vocabulary(rng)
    pool = rng.choices(words, cum_weights=weights, k=2_000_000)
    profile = load_profile("web")
    key = profile.hash  # which stores the definition

    def text(length: int) -> str:
        start = rng.randrange(len(pool) - length // 4)
        return " ".join(pool[start : start + length // 6])[:length]

    with path.open("wb") as file:
        for number in range(count):
            size = kilobytes * 1000
            steps: list[dict[str, object]] = [{"agent": "plan", "text": text(size // 20)}]
            for agent in ("web_search", "crawl_page", "web_search", "crawl_page"):
                failed = rng.random() < 0.05
                steps.append({"agent": "think", "text": text(size // 20)})
                steps.append({"agent": agent, "text": text(40)})
                observed = {"agent": "observation", "author": "environment", "text": text(size * 17 // 100)}
                steps.append({**observed, "meta": {"ok": not failed}})
            steps.append({"agent": "answer", "text": text(20)})
            written = 800 + rng.randrange(400)
            row = {
                "schema_version": 2,
                "task": {"id": f"task-{number:07}", "question": text(80), "answer": [text(20)],
                         "meta": {"family": f"f{number % 7}"}},
                "profile": "web", "profile_hash": key, "steps": steps,
                "scores": {"exact": {"value": float(rng.random() < 2 / 3)}},
                "usage": {"prompt_tokens": 9 * written, "completion_tokens": written, "model_calls": 5,
                          "tool_calls": 4, "seconds": rng.random() * 60},
            }  # fmt: skip
            if number == 0:
                row["profile_definition"] = definition(key)
            file.write(orjson.dumps(row) + b"\n")


def vocabulary(rng: random.Random) -> tuple[list[str], list[float]]:
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(rng.choices(letters, k=rng.randint(2, 10))) for _ in range(_WORDS)]
    return words, list(itertools.accumulate(1 / (rank + 3) for rank in range(_WORDS)))


def index(folder: Path, cache: Path) -> tuple[float, float]:
    """CPU seconds and peak megabytes of indexing in a process of its own."""
    program = (
        "import sys; from pathlib import Path; from coa.view.index import cache_file; "
        "from coa.view.indexer import update_index; roots = [Path(sys.argv[1])]; "
        "update_index(cache_file(roots, Path(sys.argv[2])), roots, scan=False)"
    )
    child = subprocess.Popen([sys.executable, "-c", program, str(folder), str(cache)])
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit("indexing failed")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


class Viewing:
    """`coa view` in a process of its own, on an index that exists."""

    def __init__(self, folder: Path, cache: Path) -> None:
        began = time.perf_counter()
        command = [sys.executable, "-m", "coa.cli", "view", str(folder), "--cache", str(cache), "--port", "0",
                   "--no-open"]  # fmt: skip
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().split()[-1].partition("/#")[0]
        self.get("api/runs.json?limit=50")
        self.opened_s = time.perf_counter() - began

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"{self.url}/{path}") as answer:
            return bytes(answer.read())

    def milliseconds(self, paths: Sequence[str]) -> list[float]:
        found = []
        for path in paths:
            began = time.perf_counter()
            self.get(path)
            found.append((time.perf_counter() - began) * 1000)
        return found

    def peak_megabytes(self) -> float:
        """Of the server and the indexer together."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return sum(_peak(pid) for pid in [self._process.pid, *map(int, children)])

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


def _peak(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024


def beside_inspect(count: int, kilobytes: int) -> None:
    """Seconds until the first runs of the list are on the screen, the best of three, and the server's peak memory."""
    python = inspect_python()
    if python is None:
        return
    with tempfile.TemporaryDirectory() as place:
        folder, logs, cache = Path(place, "runs"), Path(place, "logs"), Path(place, "cache")
        folder.mkdir()
        logs.mkdir()
        write_runs(folder / "trajectories.jsonl", count, kilobytes)
        log = logs / "2026-01-01T00-00-00-00-00_runs_abc.eval"
        script = Path(__file__).with_name("inspect_view.py")
        subprocess.run([str(python), str(script), str(folder / "trajectories.jsonl"), str(log)], check=True)
        index(folder, cache)
        viewing = Viewing(folder, cache)
        port = str(_free_port())
        command = [str(python), "-m", "inspect_ai", "view", "--log-dir", str(logs), "--port", port]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as inspect:
            ours = on_screen(f"{viewing.url}/#/runs", "task-0000000")
            theirs = on_screen(f"http://127.0.0.1:{port}/#/tasks/{log.name}", "task-0000000")
            memory = _peak(inspect.pid)
            inspect.terminate()
        print(f"{count:,} runs on the screen: coa view {ours:.2f} s, {viewing.peak_megabytes():.0f} MB with its "
              f"indexer; inspect view {theirs:.2f} s, {memory:.0f} MB: {theirs / ours:.1f} x the time")  # fmt: skip
        viewing.close()


def on_screen(url: str, text: str) -> float:
    from playwright.sync_api import Error, sync_playwright

    best = float("inf")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for attempt in range(23):
            page = browser.new_context(viewport={"width": 1280, "height": 860}).new_page()
            began = time.perf_counter()
            try:
                page.goto(url)
                page.get_by_text(text).first.wait_for(timeout=120_000)
            except Error:
                if attempt > 20:
                    raise
                time.sleep(1)  # the server has not started yet
                continue
            best = min(best, time.perf_counter() - began)
            page.context.close()
            if attempt >= 2:
                break
        browser.close()
    return best


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def queries(folder: Path, count: int, repeats: int) -> Iterator[tuple[str, list[str]]]:
    rng = random.Random(2)
    words, weights = vocabulary(random.Random(1))
    with next(folder.glob("*.jsonl")).open("rb") as file:
        sentences = [orjson.loads(line)["steps"][0]["text"].split() for line in itertools.islice(file, 50)]
    for name, pattern in _QUERIES.items():
        yield (
            name,
            [
                pattern.format(
                    offset=rng.randrange(max(count - 50, 1)),
                    rare=words[rng.randrange(_WORDS // 2, _WORDS)],
                    common="+".join(rng.choices(words, cum_weights=weights, k=2)),
                    phrase="+".join(rng.choice(sentences)[2:5]),
                )
                for _ in range(repeats)
            ],
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("counts", type=int, nargs="*", default=[1_000, 20_000])
    parser.add_argument("--kilobytes", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--inspect", type=int, default=2_000, metavar="N", help="runs to show in Inspect too; 0: none")
    given = parser.parse_args()
    opened, figures = [], {}
    for count in given.counts:
        with tempfile.TemporaryDirectory() as place:
            folder, cache = Path(place, "runs"), Path(place, "cache")
            folder.mkdir()
            write_runs(folder / "trajectories.jsonl", count, given.kilobytes)
            size = (folder / "trajectories.jsonl").stat().st_size / 1e6
            seconds, peak = index(folder, cache)
            database = sum(file.stat().st_size for file in cache.iterdir()) / 1e6
            print(f"{count:,} runs, {size:,.0f} MB: indexed at {size / seconds:.1f} MB per CPU second, "
                  f"peak {peak:.0f} MB; the index has {database:,.0f} MB", flush=True)  # fmt: skip
            viewing = Viewing(folder, cache)
            opened.append(viewing.opened_s)
            print(f"  opened, with the first page, in {viewing.opened_s:.2f} s")
            times = {}
            for name, asked in queries(folder, count, given.repeats):
                found = viewing.milliseconds([f"api/runs.json?{query}" for query in asked])
                times[name] = {"median_ms": statistics.median(found), "largest_ms": max(found)}
                print(f"  {name:<34} median {statistics.median(found):6.1f} ms, largest {max(found):6.1f} ms")
            memory = viewing.peak_megabytes()
            print(f"  peak memory of server and indexer together {memory:.0f} MB")
            viewing.close()
            figures[count] = {
                "megabytes": size, "megabytes_per_cpu_second": size / seconds, "indexing_peak_mb": peak,
                "opened_s": viewing.opened_s, "queries": times, "viewing_peak_mb": memory,
            }  # fmt: skip
    print(f"{given.counts[-1] / given.counts[0]:g} x the runs open in {opened[-1] / opened[0]:.2f} x the time")
    if given.inspect:
        beside_inspect(given.inspect, given.kilobytes)
    if given.json is not None:
        given.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
