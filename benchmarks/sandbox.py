"""Milliseconds of a program in the sandbox, compared with the same in a cold interpreter.

`python -m benchmarks.sandbox [REPEATS]`

All in one run and in turn, because a busy machine changes from minute to minute: only the ratios mean something.
"""

from __future__ import annotations

import asyncio
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence

from benchmarks.results import Figure, save
from coa.sandbox import CodeVerdict, Sandbox, open_sandbox
from coa.scoring.code import Case, Problem, judge

PLAIN = "print(sum(range(10)))"
IMPORT = "import sympy\nprint(sympy.__name__)"
INTEGRAL = "import sympy\nx = sympy.Symbol('x')\nprint(sympy.integrate(x**2 * sympy.exp(x), x))"
DOUBLE = "n = int(input())\nprint(n * 2)"
BWRAP = shlex.split(
    "bwrap --ro-bind / / --dev /dev --proc /proc --tmpfs /tmp --unshare-all --die-with-parent --clearenv"
)
"""Namespaces and nothing else: the least that a judge with a sandbox for each test does."""

COLD = "cold python, no isolation"
Job = Callable[[], Awaitable[None]]


async def main(repeats: int) -> None:
    sandbox = await open_sandbox("zygote", workers=2)
    for code in (PLAIN, INTEGRAL):
        await sandbox.run(code)  # warm interpreters are started once and kept
    walls = await open_sandbox("bwrap", workers=2) if shutil.which("bwrap") else None
    jobs: dict[str, dict[str, Job]] = {
        "print(sum(range(10)))": {
            "/bin/true": process(["/bin/true"]),
            COLD: process([sys.executable, "-c", PLAIN]),
            **({"bwrap, cold python": process([*BWRAP, sys.executable, "-c", PLAIN])} if walls else {}),
            **({"coa, all walls, bwrap": run(walls, PLAIN)} if walls else {}),
            "coa": run(sandbox, PLAIN),
        },
        "import sympy": {
            COLD: process([sys.executable, "-c", IMPORT]),
            **({"bwrap, cold python": process([*BWRAP, sys.executable, "-c", IMPORT])} if walls else {}),
            **({"coa, all walls, bwrap": run(walls, IMPORT)} if walls else {}),
            "coa": run(sandbox, IMPORT),
        },
        "a sympy integral": {
            COLD: process([sys.executable, "-c", INTEGRAL]),
            **({"bwrap, cold python": process([*BWRAP, sys.executable, "-c", INTEGRAL])} if walls else {}),
            **({"coa, all walls, bwrap": run(walls, INTEGRAL)} if walls else {}),
            "coa": run(sandbox, INTEGRAL),
        },
    }
    figures = list[Figure]()
    for title, ways in jobs.items():
        count = repeats if title.startswith("print") else max(repeats // 5, 3)
        print(f"\n{title} ({count} each, in turn)")
        print(f"{'':28}{'median ms':>10}{'min':>8}{'x cold':>8}{'runs/s, 2 at once':>20}")
        medians = await latencies(ways, count)
        cold = medians[COLD][0]
        for name, (median, least) in medians.items():
            rate = await throughput(ways[name], max(count // 2, 4))
            print(f"{name:28}{median:10.1f}{least:8.1f}{cold / median:8.2f}{rate:20.1f}")
        ours = medians["coa"][0]
        figures += [Figure(f"{title}, median", ours, "ms"), Figure(f"{title}, median time", ours / cold, "x", COLD)]
    judging, cold = await many_tests(sandbox, walls)
    figures.append(Figure("100 tests of one program: median time of a test", judging / cold, "x", COLD))
    await sandbox.close()
    save("sandbox", " ".join(["python -m benchmarks.sandbox", *sys.argv[1:]]), figures)


def process(command: list[str], stdin: str = "") -> Job:
    async def job() -> None:
        given = stdin.encode()
        await asyncio.to_thread(subprocess.run, command, input=given, stdout=subprocess.DEVNULL, check=True)

    return job


def run(sandbox: Sandbox, code: str) -> Job:
    async def job() -> None:
        result = await sandbox.run(code)
        assert result.ok, result

    return job


async def latencies(ways: dict[str, Job], count: int) -> dict[str, tuple[float, float]]:
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(count):
        for name, job in ways.items():
            began = time.perf_counter()
            await job()
            taken[name].append((time.perf_counter() - began) * 1e3)
    return {name: (statistics.median(times), min(times)) for name, times in taken.items()}


async def throughput(job: Job, count: int) -> float:
    async def worker() -> None:
        for _ in range(count):
            await job()

    began = time.perf_counter()
    await asyncio.gather(worker(), worker())
    return 2 * count / (time.perf_counter() - began)


async def many_tests(sandbox: Sandbox, walls: Sandbox | None, count: int = 100, rounds: int = 5) -> tuple[float, float]:
    """A judgement against a sandbox for each test: a cold one, as most judges have it, and a warm one of ours.

    Returns the median milliseconds of a test, judged by coa and in a cold interpreter."""
    cases = tuple(Case(stdin=f"{n}\n", expected=f"{2 * n}\n") for n in range(count))
    problem = Problem(cases=cases)

    async def judged() -> None:
        assert (await judge(problem, DOUBLE, sandbox)).verdict is CodeVerdict.AC

    async def in_turn(of: Sandbox, share: Sequence[Case]) -> None:
        for case in share:
            assert (await of.run(DOUBLE, stdin=case.stdin)).text == case.expected

    async def two_at_once(of: Sandbox) -> None:
        await asyncio.gather(in_turn(of, cases[::2]), in_turn(of, cases[1::2]))

    async def one_program() -> None:
        program = await sandbox.program(DOUBLE)
        for case in cases:
            assert (await program.run(case.stdin)).text == case.expected
        await program.close()

    cold = [process([sys.executable, "-c", DOUBLE], case.stdin) for case in cases]
    bare = [process([*BWRAP, sys.executable, "-c", DOUBLE], case.stdin) for case in cases[: count // 10]]
    tenth = cases[: count // 10]
    ways: dict[str, tuple[Job, int]] = {
        COLD: (lambda: in_order(cold[: count // 10]), len(tenth)),
        **({"bwrap, cold python": (lambda: in_order(bare), len(tenth))} if walls else {}),
        **({"coa, all walls, bwrap": (lambda: in_turn(walls, tenth), len(tenth))} if walls else {}),
        "coa, a warm run for each": (lambda: in_turn(sandbox, cases), count),
        "the same, 2 at once": (lambda: two_at_once(sandbox), count),
        "coa, one program, in turn": (one_program, count),
        "coa judge": (judged, count),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, (job, tests) in ways.items():
            began = time.perf_counter()
            await job()
            taken[name].append((time.perf_counter() - began) / tests * 1e3)
    print(f"\n{count} tests of one program ({rounds} rounds, in turn)")
    print(f"{'':28}{'median ms a test':>18}{'min':>8}{'x judge':>10}{'by min':>8}")
    best = taken["coa judge"]
    for name, times in taken.items():
        more, by_least = statistics.median(times) / statistics.median(best), min(times) / min(best)
        print(f"{name:28}{statistics.median(times):18.2f}{min(times):8.2f}{more:10.2f}{by_least:8.2f}")
    return statistics.median(best), statistics.median(taken[COLD])


async def in_order(jobs: Sequence[Job]) -> None:
    for job in jobs:
        await job()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 50))
