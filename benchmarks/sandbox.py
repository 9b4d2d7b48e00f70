"""The sandbox beside cold interpreters: `python -m benchmarks.sandbox [repeats]`.

All in one run and in turn, because a busy machine changes from minute to minute: only the ratios mean something.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

from coa.tools.sandbox import Sandbox, open_sandbox

PLAIN = "print(sum(range(10)))"
IMPORT = "import sympy\nprint(sympy.__name__)"
INTEGRAL = "import sympy\nx = sympy.Symbol('x')\nprint(sympy.integrate(x**2 * sympy.exp(x), x))"
DOUBLE = "n = int(input())\nprint(n * 2)"

Job = Callable[[], Awaitable[None]]


async def main(repeats: int) -> None:
    sandbox = await open_sandbox("zygote", workers=2)
    for code in (PLAIN, INTEGRAL):
        await sandbox.run(code)  # warm interpreters are started once and kept
    walls = await open_sandbox("bwrap", workers=2) if shutil.which("bwrap") else None
    jobs: dict[str, dict[str, Job]] = {
        "print(sum(range(10)))": {
            "/bin/true": process(["/bin/true"]),
            "cold python, no isolation": process([sys.executable, "-c", PLAIN]),
            **({"bwrap, cold python": run(walls, PLAIN)} if walls else {}),
            "coa": run(sandbox, PLAIN),
        },
        "import sympy": {
            "cold python, no isolation": process([sys.executable, "-c", IMPORT]),
            **({"bwrap, cold python": run(walls, IMPORT)} if walls else {}),
            "coa": run(sandbox, IMPORT),
        },
        "a sympy integral": {
            "cold python, no isolation": process([sys.executable, "-c", INTEGRAL]),
            **({"bwrap, cold python": run(walls, INTEGRAL)} if walls else {}),
            "coa": run(sandbox, INTEGRAL),
        },
    }
    for title, ways in jobs.items():
        count = repeats if title.startswith("print") else max(repeats // 5, 3)
        print(f"\n{title} ({count} each, in turn)")
        print(f"{'':28}{'median ms':>10}{'min':>8}{'x cold':>8}{'runs/s, 2 at once':>20}")
        medians = await latencies(ways, count)
        cold = medians["cold python, no isolation"][0]
        for name, (median, least) in medians.items():
            rate = await throughput(ways[name], max(count // 2, 4))
            print(f"{name:28}{median:10.1f}{least:8.1f}{cold / median:8.2f}{rate:20.1f}")
    await many_tests(sandbox)
    await sandbox.close()


def process(command: list[str]) -> Job:
    async def job() -> None:
        await asyncio.to_thread(subprocess.run, command, stdout=subprocess.DEVNULL, check=True)

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


async def many_tests(sandbox: Sandbox, count: int = 100) -> None:
    """One after the other in both ways, as a judge does it."""
    best = [float("inf"), float("inf")]
    for _ in range(3):
        began = time.perf_counter()
        for n in range(count):
            assert (await sandbox.run(DOUBLE, stdin=f"{n}\n")).text == f"{2 * n}\n"
        best[0] = min(best[0], time.perf_counter() - began)
        began = time.perf_counter()
        program = await sandbox.program(DOUBLE)
        for n in range(count):
            assert (await program.run(f"{n}\n")).text == f"{2 * n}\n"
        await program.close()
        best[1] = min(best[1], time.perf_counter() - began)
    print(
        f"\n{count} tests of one program: a sandbox for each {best[0]:.2f} s, compiled once and forked {best[1]:.2f} s"
    )
    print(f"{best[0] / best[1]:.1f} x (goal 4)")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 50))
