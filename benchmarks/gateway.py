"""CPU milliseconds per call of the recording gateway, compared with a bare proxy loop, and 1,000 streams held at once.

A scripted server, the proxy and the client are processes of their own; only the proxy's CPU time counts (user and
system, all threads). The bare loop forwards with the same libraries and records nothing: what nobody can go below.
"""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
import orjson
from aiohttp import web

from benchmarks.results import Figure, save
from coa.distill.gateway.config import RecordConfig
from coa.distill.gateway.stage import record

CALLS = 4000
PARALLEL = 256
ROUNDS = 5
STREAMS = 1000
TOKENS = 64
"""Events of a streamed reply in the comparison."""
TOOLS = [
    {"type": "function", "function": {
        "name": f"tool_{n}", "description": "Looks up one fact about a place in the archive of the harbour. " * 3,
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}}},
    }} for n in range(6)
]  # fmt: skip
HISTORY = [
    {"role": "system", "content": "You are the planner of a team. " * 20},
    *({"role": role, "content": "The north light was first lit in 1871, the south light in 1885. " * 8}
      for role in ("user", "assistant") * 5),
]  # fmt: skip
REQUEST = {"model": "instant", "messages": HISTORY, "tools": TOOLS}


# ---- the server


def _reply() -> bytes:
    function = {"name": "tool_1", "arguments": '{"query": "light number 3"}'}
    message = {"role": "assistant", "content": "I need one more fact. " * 20,
               "tool_calls": [{"id": "call-1", "type": "function", "function": function}]}  # fmt: skip
    usage = {"prompt_tokens": 1500, "completion_tokens": 120, "total_tokens": 1620}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    return orjson.dumps({"id": "1", "object": "chat.completion", "created": 1, "model": "instant",
                         "choices": [choice], "usage": usage})  # fmt: skip


def _event(text: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text} if text else {}, "logprobs": None, "finish_reason": finish}
    value = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "instant",
        "choices": [choice],
    }
    return b"data: " + orjson.dumps(value) + b"\n\n"


async def _serve_upstream() -> None:
    reply, pieces = _reply(), [*(_event("word ") for _ in range(TOKENS)), _event("", "stop"), b"data: [DONE]\n\n"]
    held: list[asyncio.Event] = []
    release = asyncio.Event()

    async def chat(request: web.BaseRequest) -> web.StreamResponse:
        body = orjson.loads(await request.content.read())
        if not body.get("stream"):
            return web.Response(body=reply, content_type="application/json")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for at, piece in enumerate(pieces):
            await response.write(piece)
            if body.get("hold") and at == 0:
                held.append(release)
                if len(held) == body["hold"]:
                    release.set()  # every stream is open: now they may end
                await release.wait()
        return response

    runner = web.ServerRunner(web.Server(chat, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
    await _announce(runner.addresses[0][1])


# ---- the proxies


async def _serve_bare(upstream: str) -> None:
    """Forwarding with the same libraries and nothing else."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(upstream, connector=connector, auto_decompress=False) as session:

        async def forward(request: web.BaseRequest) -> web.StreamResponse:
            body = await request.content.read()
            headers = {"Content-Type": request.headers["Content-Type"]}
            async with session.request(request.method, request.path, data=body, headers=headers) as answer:
                kept = {
                    name: answer.headers[name] for name in ("Content-Type", "Content-Length") if name in answer.headers
                }
                response = web.StreamResponse(status=answer.status, headers=kept)
                await response.prepare(request)
                async for piece in answer.content.iter_any():
                    await response.write(piece)
                await response.write_eof()
                return response

        runner = web.ServerRunner(web.Server(forward, access_log=None, auto_decompress=False))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
        await _announce(runner.addresses[0][1])


def _serve_gateway(upstream: str) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        record(RecordConfig(upstream=upstream, port=0), folder) as gateway,
    ):
        asyncio.run(_announce(int(gateway.url.rpartition(":")[2])))
        written = sum(line.count(b"\n") for line in map(Path.read_bytes, Path(folder).glob("*.jsonl")))
        assert gateway.counts.lost == 0 and written


async def _announce(port: int) -> None:
    """The port, then the CPU time so far for each line that arrives, until there are no more."""
    print(port, flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(time.process_time(), flush=True)


# ---- the client


class Part:
    """One of these processes."""

    def __init__(self, role: str, *arguments: str) -> None:
        command = [sys.executable, "-m", "benchmarks.gateway", role, *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None and self._process.stdin is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"

    def cpu(self) -> float:
        assert self._process.stdout is not None and self._process.stdin is not None
        self._process.stdin.write("?\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(60) == 0


async def _calls(url: str, count: int, parallel: int, *, stream: bool, hold: int = 0) -> None:
    body = orjson.dumps({**REQUEST, "stream": stream, "hold": hold})
    expected = None if stream else _reply()
    jobs = iter(range(count))

    async def work(session: aiohttp.ClientSession) -> None:
        for _ in jobs:
            async with session.post(f"{url}/v1/chat/completions", data=body, headers=headers) as response:
                got = await response.read()
                assert got == expected if expected else got.endswith(b"data: [DONE]\n\n"), got[:200]

    headers = {"Content-Type": "application/json", "Authorization": "Bearer sk-benchmark-000000"}
    timeout = aiohttp.ClientTimeout(None)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        await asyncio.gather(*(work(session) for _ in range(parallel)))


def _compare(proxies: dict[str, Part], *, stream: bool) -> dict[str, float]:
    """The least of several rounds, in turn, so that a busy neighbour meets both."""
    least = dict.fromkeys(proxies, math.inf)
    count = CALLS // 4 if stream else CALLS
    for _ in range(ROUNDS):
        for name, proxy in proxies.items():
            before = proxy.cpu()
            asyncio.run(_calls(proxy.url, count, PARALLEL, stream=stream))
            time.sleep(0.3)  # what is still to be written belongs to these calls
            least[name] = min(least[name], 1000 * (proxy.cpu() - before) / count)
    return least


def main() -> None:
    upstream, figures = Part("upstream"), list[Figure]()
    proxies = {"bare loop": Part("bare", upstream.url), "gateway": Part("gateway", upstream.url)}
    try:
        size = len(orjson.dumps(REQUEST))
        print(f"{PARALLEL} calls at a time, requests of {size / 1000:.1f} kB: CPU ms of the proxy per call")
        for stream in (False, True):
            spent = _compare(proxies, stream=stream)
            bare, ours = spent["bare loop"], spent["gateway"]
            kind = f"streams of {TOKENS} events" if stream else "whole replies"
            goal = f"   {ours - bare:+.2f} ms (goal: less than 1)"
            figures += [
                Figure(f"{kind}: CPU per call", ours / bare, beside="bare forwarding"),
                Figure(f"{kind}: CPU per call above that of bare forwarding", ours - bare, "ms", goal="less than 1"),
            ]
            print(f"  {kind:<22} bare loop {bare:5.2f}   gateway {ours:5.2f}   {ours / bare:.2f} times{goal}")
        start = time.monotonic()
        asyncio.run(_calls(proxies["gateway"].url, STREAMS, STREAMS, stream=True, hold=STREAMS))
        seconds = time.monotonic() - start
        print(f"  {STREAMS:,} streams held at once: all complete, in {seconds:.1f} s")
        figures.append(Figure(f"{STREAMS:,} streams held at once, until all were complete", seconds, "s"))
        save("gateway", "python -m benchmarks.gateway", figures)
    finally:
        for part in (*proxies.values(), upstream):
            part.end()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["upstream"]:
            asyncio.run(_serve_upstream())
        case ["bare", url]:
            asyncio.run(_serve_bare(url))
        case ["gateway", url]:
            _serve_gateway(url)
        case _:
            main()
