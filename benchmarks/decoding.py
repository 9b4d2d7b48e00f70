"""Decoding in one process: the local engine compared with vLLM on the CPU and llama.cpp, same prompts, greedy.

SmolLM2-135M writes 64 tokens after each of 16 and of 64 prompts of 96 tokens. First on one thread, in CPU seconds of
all processes of a side; then on two, in seconds. Every side is a process of its own that stays loaded; they take turns,
each round has new prompts, and the least of the rounds counts. vLLM runs without torch.compile, which needs a compiler
that its wheel does not bring, and returns log-probabilities as the local engine does. llama.cpp has the weights that
its users have, quantized to four bits. Where the CPU has units for bf16, the local engine and vLLM run in bf16, too.

vLLM (3 GB) gets an environment of its own, which it shares with `make test-slow`: .venv-vllm, or that in
$COA_VLLM_ENVIRONMENT. All sides together need 8 GB of memory; `--types bf16 --cpu-only` needs half of that.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.peers import VLLM, vllm_python
from benchmarks.results import Figure, save
from benchmarks.timing import cpu_seconds
from coa.models.precision import cpu_has_bf16

PROMPT, NEW, MOST = 96, 64, 64
"""Tokens of a prompt, tokens after it, most requests at a time."""
ROUNDS: Final = 2
TEXT: Final = (
    "the north light of Brannock Head was first lit in and south keeper harbour stone tower records show that between "
    "gale winter station oil lamp lens built after which council minutes describe repairs made by crew"
)
OURS: Final = "coa"
TYPES: Final = ("fp32", "bf16")
_VLLM_TYPES: Final = {"fp32": "float32", "bf16": "bfloat16"}
LLAMA: Final = "llama.cpp, Q4_1"


@dataclass(frozen=True)
class Spent:
    cpu: float
    wall: float
    ids: list[list[int]]


@dataclass
class Side:
    """A process that answers lines of prompts with lines of what it wrote."""

    name: str
    process: subprocess.Popen[str]
    least: dict[str, float] = field(default_factory=dict)
    """CPU seconds and seconds per 1,000 new tokens, by what was measured."""

    def write(self, prompts: Sequence[Sequence[int]], new: int = NEW) -> Spent:
        assert self.process.stdin is not None
        before = cpu_seconds(self.process.pid)
        self.process.stdin.write(json.dumps({"prompts": prompts, "new": new}) + "\n")
        self.process.stdin.flush()
        found = self.answer()
        return Spent(cpu_seconds(self.process.pid) - before, found["seconds"], found["ids"])

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with exit code {self.process.wait()}")
        return line.strip() if line == "ready\n" else json.loads(line)

    def keep(self, what: str, value: float) -> None:
        self.least[what] = min(self.least.get(what, math.inf), value)


@contextmanager
def started(name: str, command: Sequence[str], threads: int) -> Iterator[Side]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH" or "-m" in command[:2]}
    log = None if os.environ.get("COA_BENCH_VERBOSE") else subprocess.DEVNULL
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
        env=environment | {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"},
    )  # fmt: skip
    side = Side(name, process)
    try:
        assert side.answer() == "ready"
        yield side
    finally:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def prompts(count: int, seed: int, encode: Callable[[str], list[int]]) -> list[list[int]]:
    rng = random.Random(seed)
    return [encode(" ".join(rng.choices(TEXT.split(), k=PROMPT)))[:PROMPT] for _ in range(count)]


def sides(folder: Path, threads: int, types: Sequence[str], *, llama: bool) -> dict[str, list[str]]:
    """The command of each side that can run here."""
    here = [sys.executable, "-m", "benchmarks.decoding"]
    found = {f"{OURS}, {dtype}": [*here, "coa", dtype, str(threads)] for dtype in types}
    if (python := vllm_python()) is not None:
        script = str(Path(__file__).with_name("vllm_side.py"))
        for dtype in types:
            found[f"{VLLM}, {dtype}"] = [str(python), script, str(folder), _VLLM_TYPES[dtype], str(MOST)]
    if llama:
        found[LLAMA] = [*here, "llama", "q4_1", str(threads)]
    return found


def main() -> None:
    from coa.models.local.model import load_weights

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", nargs="*", choices=TYPES, default=TYPES if cpu_has_bf16() else TYPES[:1])
    parser.add_argument(
        "--cpu-only", action="store_true", help="one thread only: no seconds of the clock, no llama.cpp"
    )
    given = parser.parse_args()
    figures = list[Figure]()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "smollm2"
        model, tokenizer = load_weights("smollm2")
        model.save_pretrained(folder)
        tokenizer.save(folder)
        del model

        def encode(text: str) -> list[int]:
            return list(tokenizer.encode([text])[0])

        cores = min(os.cpu_count() or 1, 2)
        parts = [(1, (16, 64), "cpu"), (cores, (64,), "wall")]
        for threads, counts, clock in parts[:1] if given.cpu_only else parts:
            with ExitStack() as stack:
                commands = sides(folder, threads, given.types, llama=clock == "cpu" and not given.cpu_only)
                running = [stack.enter_context(started(name, words, threads)) for name, words in commands.items()]
                for side in running:
                    side.write(prompts(4, 0, encode), 4)
                for requests in counts:
                    what = f"{requests} requests, {threads} thread{'s' if threads > 1 else ''}"
                    measure(running, what, requests, clock, encode)
                    figures += compared({side.name: side.least[what] for side in running}, what, clock)
                    save("decoding", " ".join(["python -m benchmarks.decoding", *sys.argv[1:]]), figures)


def measure(running: Sequence[Side], what: str, requests: int, clock: str, encode: Callable[[str], list[int]]) -> None:
    for number in range(ROUNDS):
        asked = prompts(requests, 1000 * requests + number, encode)
        written: dict[str, list[list[int]]] = {}
        for side in running:
            spent = side.write(asked)
            count = sum(map(len, spent.ids))
            assert count == requests * NEW, (side.name, count)
            side.keep(what, 1000 * getattr(spent, clock) / count)
            written[side.name] = spent.ids
        first = running[0].name
        for name, ids in written.items():
            same = sum(a == b for a, b in zip(ids, written[first], strict=True))
            print(f"  {what}, round {number + 1}: {name} wrote the same as {first} in {same} of {requests}")


def compared(spent: Mapping[str, float], what: str, clock: str) -> list[Figure]:
    """Prints them, too."""
    unit = "CPU s" if clock == "cpu" else "s"
    speed = "tokens per CPU second" if clock == "cpu" else "tokens per second"
    found = []
    for name, seconds in spent.items():
        print(f"  {what}: {name:<24} {seconds:6.2f} {unit} per 1,000 tokens", flush=True)
        if name.startswith(OURS):
            found.append(Figure(f"{what}: {name}", seconds, f"{unit} per 1,000 tokens"))
    for dtype in ("fp32", "bf16"):
        ours = spent.get(f"{OURS}, {dtype}")
        for name, seconds in spent.items():
            if ours is None or name.startswith(OURS) or not (name.endswith(dtype) or name == LLAMA):
                continue
            goal = "at least 1" if name.startswith("vllm") else ""
            found.append(Figure(f"{what}, {dtype}: {speed}", seconds / ours, beside=name, goal=goal))
            print(f"  {what}, {dtype}: coa is {seconds / ours:.2f} x as fast as {name}")
    return found


# ---- sides that run in this environment


def serve(answers: Any, write: Callable[[list[list[int]], int], list[list[int]]]) -> None:
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        start = time.perf_counter()
        ids = write(asked["prompts"], asked["new"])
        print(json.dumps({"seconds": time.perf_counter() - start, "ids": ids}), file=answers, flush=True)


def _coa(answers: Any, dtype: str, threads: int) -> None:
    import torch

    from coa.models.base import Context, Sampling
    from coa.models.local import LocalModel
    from coa.models.local.model import load_weights

    torch.set_num_threads(threads)
    local = LocalModel(*load_weights("smollm2"), name="smollm2", max_rows=MOST, bf16=dtype == "bf16")
    for engine in local._engines._all:
        engine._ends = frozenset()  # no token may end a turn early, so that all sides do the same work

    async def all_of(asked: list[list[int]], new: int) -> list[list[int]]:
        greedy = Sampling(temperature=0.0, top_p=1.0, top_k=0, max_tokens=new)
        calls = [local.generate(Context([], "", ids), stop=["</never>"], sampling=greedy) for ids in asked]
        return [list(made.tokens.ids) for made in await asyncio.gather(*calls) if made.tokens is not None]

    with asyncio.Runner() as runner:
        serve(answers, lambda asked, new: runner.run(all_of(asked, new)))
        runner.run(local.close())


def _llama(answers: Any, threads: int) -> None:
    import xllamacpp
    from aiohttp import ClientSession, ClientTimeout

    from coa.models.tokenizer import smollm2_file

    params = xllamacpp.CommonParams()
    params.model.path = str(smollm2_file())
    params.port, params.hostnames = 0, ["127.0.0.1"]
    params.n_ctx, params.n_parallel, params.warmup = MOST * (PROMPT + NEW + 16), MOST, False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)

    async def all_of(asked: list[list[int]], new: int) -> list[list[int]]:
        more = {"n_predict": new, "temperature": 0.0, "ignore_eos": True, "cache_prompt": False, "return_tokens": True}

        async def one(ids: list[int]) -> list[int]:
            async with session.post(f"{server.listening_address}/completion", json={**more, "prompt": ids}) as answer:
                return list((await answer.json())["tokens"])

        async with ClientSession(timeout=ClientTimeout(None)) as session:
            return await asyncio.gather(*map(one, asked))

    with asyncio.Runner() as runner:
        serve(answers, lambda asked, new: runner.run(all_of(asked, new)))


def _side(name: str, dtype: str, threads: int) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if name == "coa":
        _coa(answers, dtype, threads)
    else:
        _llama(answers, threads)
    answers.flush()
    os._exit(0)  # the threads of llama.cpp's server would go on


if __name__ == "__main__":
    if sys.argv[1:2] in (["coa"], ["llama"]):
        _side(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    else:
        main()
