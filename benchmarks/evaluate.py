"""CPU milliseconds a task of `coa eval`, beside Inspect AI doing the same: 4 model calls, 3 tool calls, a score, a log.

Both are whole processes against a server that answers at once; start-up is in the figures. Inspect AI gets an
environment of its own in build/, or the one whose python $COA_BENCH_INSPECT names; without either it is left out.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

TASKS = 2_000
INSPECT = "inspect-ai==0.3.285"
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
    works = {
        "coa eval, chat mode": [*command, "--set", "run.mode=chat"],
        "coa eval, token mode": [*command, "--set", "run.mode=tokens", "--set", "run.tokenizer=smollm2"],
    }
    if (python := inspect_python()) is not None:
        works["Inspect AI"] = [str(python), str(Path(__file__).with_name("inspect_eval.py")), url, str(tasks)]
    found: dict[str, float] = {}
    for name, given in works.items():
        out = [str(folder / name)] if name == "Inspect AI" else ["--out", str(folder / name)]
        found[name] = spent([*given, *out], folder)
    print(f"CPU ms per task of {TASKS:,} (4 model calls, 3 tool calls, one score), whole process, 64 at a time")
    for name, seconds in found.items():
        print(f"  {name:<22} {1000 * seconds / TASKS:7.2f}")
    if "Inspect AI" in found:
        ratio = found["Inspect AI"] / found["coa eval, chat mode"]
        print(f"  Inspect AI / coa eval, chat mode: {ratio:.1f}   (goal: at least 10)")


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


def inspect_python() -> Path | None:
    if named := os.environ.get("COA_BENCH_INSPECT"):
        return Path(named)
    place = Path(__file__).resolve().parents[1] / "build" / "inspect"
    python = place / "bin" / "python"
    ready = place / ".ready"
    if not ready.is_file():
        try:
            subprocess.run([sys.executable, "-m", "venv", str(place)], check=True, capture_output=True)
            subprocess.run(
                [str(python), "-m", "pip", "install", "-q", INSPECT, "openai"], check=True, capture_output=True
            )
            ready.touch()
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"without Inspect AI: its environment cannot be made ({error})", file=sys.stderr)
            return None
    return python


if __name__ == "__main__":
    main()
