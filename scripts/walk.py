"""Counts the files and functions of coa that one record visits in each stage, by a profile hook.

    .venv/bin/python scripts/walk.py                    # all walks of this checkout
    .venv/bin/python scripts/walk.py run --list         # every function of one, in the order of its first call
    .venv/bin/python scripts/walk.py --src ../old/src   # the same command lines through other sources

A reader who follows a record has to open these files. File switches are how often the next function that is called for
the first time lies in another file than the one before. What runs while a module is imported does not count, nor do
lambdas and comprehensions. Every walk has a process of its own, so that no cache of another one shortens it.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
WALKS: Final = {
    "run": "run --model nano --seed 1 --out run.jsonl",
    "distil": "distill spans.json --out distilled --profile nano --tasks answers.jsonl",
    "SFT": "sft --model smollm2 --data rows.jsonl --set epochs=1 --set batch_size=24 --set max_tokens=1024 --out sft",
    "RL": "rl --model nano --tasks tasks.jsonl --world atlas --profile atlas --steps 1 --set prompts=2 --set group=3"
    " --set draw=2 --set rounds=1 --set lora.rank=8 --set reward.function=walk_reward:alternating --out rl",
    "evaluate": "eval atlas --model nano --limit 1 --out eval",
}
"""The command line of each walk, in a folder with the files that `write_inputs` makes."""


class Walk:
    """A profile hook that keeps the functions below a folder in the order of their first calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder) + os.sep
        self.visited: dict[CodeType, None] = {}
        self.importing = threading.local()

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(self.folder):
            return
        if code.co_name == "<module>":
            depth = getattr(self.importing, "depth", 0)
            self.importing.depth = depth + (1 if event == "call" else -1)
        elif event == "call" and not getattr(self.importing, "depth", 0):
            is_function = code.co_flags & inspect.CO_OPTIMIZED  # the body of a class is not
            if is_function and not code.co_name.startswith("<"):
                self.visited.setdefault(code)

    def functions(self) -> list[tuple[str, str]]:
        return [(code.co_filename.removeprefix(self.folder), code.co_qualname) for code in self.visited]


def walk(arguments: list[str]) -> list[tuple[str, str]]:
    """Run a command in this process and return the functions that it visited."""
    import coa
    from coa.cli import app

    hook = Walk(Path(coa.__file__).parent)
    printed = io.StringIO()
    threading.setprofile(hook)
    sys.setprofile(hook)
    try:
        with contextlib.redirect_stdout(printed):
            failed = app(arguments, standalone_mode=False)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    if failed:
        sys.exit(f"coa {' '.join(arguments)} ended with {failed}:\n{printed.getvalue()}")
    return hook.functions()


def write_inputs(folder: Path) -> None:
    """The smallest files that take a record all the way: one trace of a team, 24 trajectories, two tasks, a reward."""
    (folder / "spans.json").write_text(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": _spans()}]}]}))
    examples = [json.loads(line) for line in (ROOT / "examples" / "runs.jsonl").read_text().splitlines()]
    with (folder / "rows.jsonl").open("w") as file:
        for number in range(24):
            row = examples[number % len(examples)]
            file.write(json.dumps({**row, "task": {**row["task"], "id": f"row-{number}"}}) + "\n")
    tasks = [{"id": f"t{n}", "question": f"What is {n} times 48?", "answer": str(48 * n)} for n in (37, 52)]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    answer = {"id": "tower", "question": "How tall is the tower?", "answer": "330 m"}
    (folder / "answers.jsonl").write_text(json.dumps(answer) + "\n")
    # Groups whose attempts all score alike teach nothing, and the walk would end before the update.
    (folder / "walk_reward.py").write_text("def alternating(trajectory, score):\n    return trajectory.sample % 2\n")


def _spans() -> list[dict[str, Any]]:
    """A team of two as OpenTelemetry with OpenInference's names: the boss asks a searcher, which calls a tool."""
    said = "llm.output_messages.0.message"
    call = f"{said}.tool_calls.0.tool_call.function"
    whole, part = '{"task": "How tall is the tower?"}', '{"task": "height of the tower"}'
    query = '{"query": "tower height"}'
    return [
        _span(1, None, "boss.run", "AGENT", {"input.value": whole, "output.value": "330 m"}),
        _span(2, 1, "llm", "LLM", {f"{said}.role": "assistant", f"{call}.name": "searcher", f"{call}.arguments": part}),
        _span(3, 1, "searcher.run", "AGENT", {"input.value": part, "output.value": "330 m"}),
        _span(
            4, 3, "llm", "LLM", {f"{said}.role": "assistant", f"{call}.name": "web_search", f"{call}.arguments": query}
        ),
        _span(
            5,
            3,
            "web_search",
            "TOOL",
            {"tool.name": "web_search", "input.value": query, "output.value": "It is 330 m."},
        ),
        _span(6, 3, "llm", "LLM", {f"{said}.role": "assistant", f"{said}.content": "330 m"}),
        _span(7, 1, "llm", "LLM", {f"{said}.role": "assistant", f"{said}.content": "330 m"}),
    ]


def _span(number: int, parent: int | None, name: str, kind: str, attributes: dict[str, str]) -> dict[str, Any]:
    named = {"openinference.span.kind": kind, **attributes}
    typed = [{"key": key, "value": {"stringValue": value}} for key, value in named.items()]
    start = 1_700_000_000_000_000_000 + number
    row = {"traceId": "aa", "spanId": str(number), "name": name, "startTimeUnixNano": str(start), "attributes": typed}
    return {**row, "endTimeUnixNano": str(start + 1)} | ({} if parent is None else {"parentSpanId": str(parent)})


def switches(functions: list[tuple[str, str]]) -> int:
    files = [file for file, _ in functions]
    return sum(here != there for here, there in itertools.pairwise(files))


def in_its_own_process(name: str, source: Path) -> list[tuple[str, str]]:
    with tempfile.TemporaryDirectory() as folder:
        write_inputs(Path(folder))
        command = [sys.executable, __file__, "--here", name]
        path = os.pathsep.join([str(source), folder])
        done = subprocess.run(
            command, cwd=folder, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"{name}: {done.stderr}")
        return [(file, function) for file, function in json.loads(done.stdout.splitlines()[-1])]


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("walks", nargs="*", help=f"which ones, of {', '.join(WALKS)}; all if none is named")
    options.add_argument("--src", type=Path, default=ROOT / "src", help="the sources to walk through")
    options.add_argument("--list", action="store_true", help="print the functions too")
    options.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if unknown := [name for name in chosen.walks if name not in WALKS]:
        options.error(f"no walk is called {unknown[0]}; there are {', '.join(WALKS)}")
    if chosen.here:
        print(json.dumps(walk(WALKS[chosen.walks[0]].split())))
        return
    print(f"{'walk':<10} {'files':>6} {'functions':>10} {'file switches':>14}")
    for name in chosen.walks or WALKS:
        functions = in_its_own_process(name, chosen.src.resolve())
        files = {file for file, _ in functions}
        print(f"{name:<10} {len(files):>6} {len(functions):>10} {switches(functions):>14}", flush=True)
        if chosen.list:
            print(*(f"    {file}  {function}" for file, function in functions), sep="\n")


if __name__ == "__main__":
    main()
