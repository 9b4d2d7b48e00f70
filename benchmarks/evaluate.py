"""CPU milliseconds a task of `coa eval`, compared with Inspect AI and verifiers: 4 model calls, 3 tool calls, a score.

All are whole processes against a server that answers at once; start-up is in the figures. Inspect AI and verifiers get
environments of their own in build/, or those whose python $COA_BENCH_INSPECT and $COA_BENCH_VERIFIERS name; one that
cannot be made is left out.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.peers import INSPECT, VERIFIERS, inspect_python, verifiers_python
from benchmarks.results import Figure, save

TASKS = 2_000
CHAT, TOKENS = "coa eval, chat mode", "coa eval, token mode"
TOOLS = """
from coa.tools import Observation
from coa.trajectory import Form, Shape


class Lookup:
    about = "looks things up."
    shape = Shape(form=Form.LINE)
    timeout_s = 10.0

    async def call(self, arguments, context):
        return Observation("Brannock Head: the north light was first lit in 1871, the south light in 1885. " * 4)
"""


def main() -> None:
    server = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.instant_server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    url = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
    try:
        with tempfile.TemporaryDirectory() as place:
            measure(url, Path(place))
    finally:
        server.terminate()


def measure(url: str, folder: Path) -> None:
    tasks = folder / "lights.jsonl"
    rows = [{"id": f"t{n}", "question": f"Older light, {n}?", "answer": "the north light"} for n in range(TASKS)]
    tasks.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "lookup.py").write_text(TOOLS)
    command = [
        sys.executable, "-m", "coa.cli", "eval", str(tasks), "--model", url, "--profile", "nano",
        "--tool", "web_search=lookup:Lookup", "--scorer", "exact", "--set", "run.constrain=never",
    ]  # fmt: skip
    out = {CHAT: "chat", TOKENS: "tokens", INSPECT: "inspect", VERIFIERS: "verifiers"}
    works = {
        CHAT: [*command, "--set", "run.mode=chat", "--out"],
        TOKENS: [*command, "--set", "run.mode=tokens", "--set", "run.tokenizer=smollm2", "--out"],
    }
    here = Path(__file__)
    if (python := inspect_python()) is not None:
        works[INSPECT] = [str(python), str(here.with_name("inspect_eval.py")), url, str(tasks)]
    if (python := verifiers_python()) is not None:
        works[VERIFIERS] = [str(python), str(here.with_name("verifiers_eval.py")), url, str(tasks)]
    print(f"CPU ms per task of {TASKS:,} (4 model calls, 3 tool calls, one score), whole process, 64 at a time")
    found = {name: 1000 * spent([*given, str(folder / out[name])], folder) / TASKS for name, given in works.items()}
    figures = [Figure(f"{name}: CPU per task", found[name], "ms") for name in (CHAT, TOKENS)]
    for name, spent_ms in found.items():
        print(f"  {name:<24} {spent_ms:7.2f}")
        if name in (INSPECT, VERIFIERS):
            figures.append(Figure(f"{CHAT}: CPU per task", found[CHAT] / spent_ms, beside=name, goal="at most 0.1"))
            print(f"  coa eval, chat mode / {name}: {figures[-1].value:.3f} ({figures[-1].goal})")
    save("evaluate", "python -m benchmarks.evaluate", figures)


def spent(command: list[str], folder: Path) -> float:
    """Processor seconds of a process that must succeed."""
    root = Path(__file__).resolve().parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), os.environ.get("PYTHONPATH", "")])}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{command[0]} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
