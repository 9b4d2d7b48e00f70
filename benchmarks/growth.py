"""How `coa cost`, `compare`, `score`, `inspect` and `distill` grow with the number of runs: CPU seconds, peak memory.

Each command is a whole process over files of made-up runs in a temporary folder; `distill` converts and filters
recorded team runs that are made as they are read, and its time includes making them. What matters are the
ratios: ten times the runs should take about ten times the time and the same memory. `python -m benchmarks.growth
10000 100000 1000000` names other numbers of runs, `--kilobytes` the size of one, `--commands` the commands; the files
of a million runs take 12 GB. Figures go to `benchmarks/results/`.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks.results import Figure, save
from coa.trajectory import Author, Score, Step, Task, Trajectory, Usage
from coa.trajectory.profile import load_profile
from coa.trajectory.store import Lines
from coa.trajectory.types import FrozenDict

_TEXT = (
    "the north light of Brannock Head was first lit in year and south keeper harbour stone tower records show that "
    "between gale winter station oil lamp lens built after which council minutes describe repairs made by crew"
)


GOALS: Final = {("compare", 100_000): "at most 20", ("inspect", 10_000): "at most 0.25"}
"""CPU seconds, by command and number of runs. `compare` reads this number twice, `inspect` shows the first five."""


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
    """CPU seconds and peak resident megabytes of Python with these arguments."""
    child = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {child.returncode}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def commands(folder: Path, count: int) -> dict[str, list[str]]:
    first, second = str(folder / "a.jsonl"), str(folder / "b.jsonl")
    coa = ["-m", "coa.cli"]
    return {
        "cost": [*coa, "cost", first],
        "compare": [*coa, "compare", first, second, "--scorer", "exact", "--out", str(folder / "comparison")],
        "score": [*coa, "score", first, "--scorer", "f1"],
        "inspect": [*coa, "inspect", first, "--limit", "5"],
        "distill": ["-m", "benchmarks.distill", str(count), "plain"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("counts", type=int, nargs="*", default=[10_000, 100_000])
    parser.add_argument("--kilobytes", type=int, default=6)
    parser.add_argument("--commands", nargs="*", default=["cost", "compare", "score", "inspect", "distill"])
    given = parser.parse_args()
    rows: dict[str, list[tuple[float, float]]] = {name: [] for name in given.commands}
    figures: list[Figure] = []
    for count in given.counts:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            for name, seed in (("a", 1), ("b", 2)):
                write(folder / f"{name}.jsonl", count, given.kilobytes, seed=seed)
            for name, found in rows.items():
                found.append(measure(commands(folder, count)[name]))
                seconds, megabytes = found[-1]
                print(f"{name:<8} {count:>9,} runs {seconds:8.1f} CPU s {megabytes:8.0f} MB", flush=True)
                goal = GOALS.get((name, count), "")
                what = f"{name}, {count:,} runs of {given.kilobytes} KB: processor time"
                figures.append(Figure(what, seconds, "s", goal=goal))
                figures.append(Figure(f"{name}, {count:,} runs of {given.kilobytes} KB: memory", megabytes, "MB"))
    times = given.counts[-1] / given.counts[0]
    for name, found in rows.items():
        (time_a, memory_a), (time_b, memory_b) = found[0], found[-1]
        slower, larger = time_b / time_a, memory_b / memory_a
        print(f"{name:<8} {times:g} x the runs: {slower:.2f} x the time, {larger:.2f} x the memory")
        beside = f"the same with {given.counts[0]:,} runs"
        figures.append(Figure(f"{name}, {times:g} x the runs: time", slower, beside=beside, goal=f"about {times:g}"))
        figures.append(Figure(f"{name}, {times:g} x the runs: memory", larger, beside=beside, goal="about 1"))
    save("growth", f"python -m benchmarks.growth {' '.join(map(str, sys.argv[1:]))}".strip(), figures)


if __name__ == "__main__":
    main()
