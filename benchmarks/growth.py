"""How `coa cost`, `coa compare` and `coa score` grow with the number of runs: CPU seconds and peak memory.

Each command is a whole process over files of made-up runs in a temporary folder. What matters are the ratios: five
times the runs should take about five times the time and the same memory. `python -m benchmarks.growth 10000 50000`
names the numbers of runs, `--kilobytes` the size of one.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from coa.trajectory import Author, Score, Step, Task, Trajectory, Usage
from coa.trajectory.profile import load_profile
from coa.trajectory.store import Lines
from coa.trajectory.types import FrozenDict

_TEXT = (
    "the north light of Brannock Head was first lit in year and south keeper harbour stone tower records show that "
    "between gale winter station oil lamp lens built after which council minutes describe repairs made by crew"
)


def made_up(count: int, kilobytes: int, *, seed: int) -> Iterator[Trajectory]:
    """Runs of one task each with two searches, two pages and an answer; two in three are right."""
    rng = random.Random(seed)
    texts = [" ".join(rng.choices(_TEXT.split(), k=160 * kilobytes)) for _ in range(64)]
    profile = load_profile("web").hash
    for number in range(count):
        text = texts[number % 64]
        long, short = len(text) * 22 // 100, 300
        steps = [Step(agent="plan", author=Author.MODEL, text=text[:short])]
        for agent in ("web_search", "crawl_page", "web_search", "crawl_page"):
            steps.append(Step(agent="think", author=Author.MODEL, text=text[-short:]))
            steps.append(Step(agent=agent, author=Author.MODEL, text=f"older light, attempt {number}"))
            steps.append(Step(agent="observation", author=Author.ENVIRONMENT, text=text[:long]))
        right = rng.random() < 2 / 3
        steps.append(Step(agent="answer", author=Author.MODEL, text="the north light" if right else "the south light"))
        written = 800 + rng.randrange(400)
        yield Trajectory(
            task=Task(id=f"task-{number:07}", question=f"Which light is older, {number}?", answer=("the north light",)),
            profile="web",
            profile_hash=profile,
            steps=tuple(steps),
            scores=FrozenDict({"exact": Score(value=float(right))}),
            usage=Usage(prompt_tokens=9 * written, completion_tokens=written, model_calls=5, tool_calls=4, seconds=3.0),
        )


def write(path: Path, count: int, kilobytes: int, *, seed: int) -> None:
    lines = Lines()
    with path.open("wb") as file:
        file.writelines(lines.line(run) + b"\n" for run in made_up(count, kilobytes, seed=seed))


def measure(command: Sequence[str]) -> tuple[float, float]:
    """CPU seconds and peak resident megabytes of `coa` with these arguments."""
    child = subprocess.Popen([sys.executable, "-m", "coa.cli", *command], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"coa {' '.join(command)} ended with {child.returncode}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("counts", type=int, nargs="*", default=[10_000, 50_000])
    parser.add_argument("--kilobytes", type=int, default=20)
    parser.add_argument("--commands", nargs="*", default=["cost", "compare", "score"])
    given = parser.parse_args()
    rows: dict[str, list[tuple[float, float]]] = {name: [] for name in given.commands}
    for count in given.counts:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            for name, seed in (("a", 1), ("b", 2)):
                write(folder / f"{name}.jsonl", count, given.kilobytes, seed=seed)
            first, second = str(folder / "a.jsonl"), str(folder / "b.jsonl")
            commands = {
                "cost": ["cost", first],
                "compare": ["compare", first, second, "--scorer", "exact", "--out", str(folder / "comparison")],
                "score": ["score", first, "--scorer", "f1"],
            }
            for name, found in rows.items():
                found.append(measure(commands[name]))
                seconds, megabytes = found[-1]
                print(f"{name:<8} {count:>9,} runs {seconds:8.1f} CPU s {megabytes:8.0f} MB", flush=True)
            shutil.rmtree(folder / "comparison", ignore_errors=True)
    for name, found in rows.items():
        (time_a, memory_a), (time_b, memory_b) = found[0], found[-1]
        times = given.counts[-1] / given.counts[0]
        print(
            f"{name:<8} {times:g} x the runs: {time_b / time_a:.2f} x the time, {memory_b / memory_a:.2f} x the memory"
        )


if __name__ == "__main__":
    main()
