"""CPU milliseconds of the client per run of 4 model calls and 3 tool calls, beside a bare aiohttp loop's."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Mapping

import aiohttp
import orjson
from pydantic import JsonValue

from benchmarks.instant_server import TURNS, say
from coa.models.connect import Mode, connect
from coa.runtime import run_many
from coa.tools import Observation, ToolContext
from coa.trajectory import Form, Shape, Stop, Task, load_profile

RUNS = 1500
PAGE = (
    "Brannock Head: the north light was first lit in 1871, the south light in 1885, after the wreck of the Corran. " * 4
)
NANO = load_profile("nano")


class Instant:
    about = "looks things up."
    shape = Shape(form=Form.LINE)
    timeout_s = 10.0

    async def call(self, arguments: Mapping[str, JsonValue], context: ToolContext) -> Observation:
        return Observation(PAGE)


async def ours(url: str, concurrency: int, mode: Mode) -> float:
    model = await connect(url, mode=mode, tokenizer="smollm2" if mode is Mode.TOKENS else None)
    start = time.process_time()  # loading the tokenizer is not part of a run
    tasks = (Task(id=str(n), question=f"Which light is older, asked for time {n}?") for n in range(RUNS))
    done = [t.stop async for t in run_many(tasks, model, {"web_search": Instant()}, NANO, concurrency=concurrency)]
    spent = time.process_time() - start
    await model.close()
    assert done == [Stop.ANSWERED] * RUNS
    return spent


async def bare(url: str, concurrency: int) -> float:
    """The same requests with nothing around them: what nobody can go below with this client library."""
    start = time.process_time()
    jobs = iter(range(RUNS))
    prompt = NANO.messages(Task(id="0", question="Which light is older, asked for time 0?"))
    messages = [message.model_dump() for message in prompt]

    async def work(session: aiohttp.ClientSession) -> None:
        for _ in jobs:
            text = ""
            for turn in range(TURNS + 1):
                body = {"model": "instant", "messages": [*messages, {"role": "assistant", "content": text}]}
                async with session.post(f"{url}/chat/completions", data=orjson.dumps(body)) as response:
                    answer = orjson.loads(await response.read())
                assert answer["choices"][0]["message"]["content"] == say(turn)
                text += f"{say(turn)}\n<observation>{PAGE}</observation>\n"

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=512)) as session:
        await asyncio.gather(*(work(session) for _ in range(concurrency)))
    return time.process_time() - start


def main() -> None:
    server = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.instant_server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    url = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
    try:
        for concurrency in (64, 256):
            least = _milliseconds(lambda c=concurrency: bare(url, c))  # type: ignore[misc]
            print(f"concurrency {concurrency}: CPU ms per run of 4 model calls and 3 tool calls")
            print(f"  bare aiohttp loop   {least:6.2f}   1.00")
            for mode in (Mode.CHAT, Mode.TOKENS):
                spent = _milliseconds(lambda c=concurrency, m=mode: ours(url, c, m))  # type: ignore[misc]
                print(f"  coa, {mode.value + ' mode':<12}   {spent:6.2f}   {spent / least:.2f}   (goal: at most 3)")
    finally:
        server.terminate()


def _milliseconds(work: Callable[[], Coroutine[None, None, float]]) -> float:
    return 1000 * min(asyncio.run(work()) for _ in range(3)) / RUNS


if __name__ == "__main__":
    main()
