"""CPU milliseconds of the client per run of 4 model calls and 3 tool calls, compared with a bare aiohttp loop's.

python -m benchmarks.runtime [CHARACTERS [RUNS]]      length of an observation (440 without it), runs in a round
"""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from tempfile import TemporaryDirectory

import aiohttp
import orjson
from pydantic import JsonValue

from benchmarks.instant_server import TURNS, say
from benchmarks.results import Figure, save
from coa.choices import Mode
from coa.models.connect import connect
from coa.models.tokenizer import TextTokenizer, load_tokenizer
from coa.runtime import Setting, run_many
from coa.runtime.live import live_feed, live_state
from coa.tools import Observation, ToolContext
from coa.trajectory import Form, Shape, Stop, Task, load_profile

RUNS = 1000
ROUNDS = 5
SENTENCE = "Brannock Head: the north light was first lit in 1871, the south light in 1885, after the Corran was lost. "
NANO = load_profile("nano")
BARE = "bare aiohttp loop"
GOALS = {Mode.CHAT: 2.2, Mode.TOKENS: 3.0}
"""How many times the CPU time of the bare loop a run may take."""


class Instant:
    about = "looks things up."
    shape = Shape(form=Form.LINE)
    timeout_s = 10.0

    def __init__(self, page: str) -> None:
        self._page = page

    async def call(self, arguments: Mapping[str, JsonValue], context: ToolContext) -> Observation:
        return Observation(self._page)


async def ours(
    url: str, concurrency: int, mode: Mode, tokenizer: TextTokenizer, page: str, *, live: bool = False
) -> float:
    """With `live`, every step also goes to a live feed, as it does in runs with an output folder."""
    assert tokenizer.fingerprint  # loading the tokenizer and hashing its vocabulary is not part of a run
    model = await connect(url, mode=mode, tokenizer=tokenizer if mode is Mode.TOKENS else None)
    start = time.process_time()
    tasks = (Task(id=str(n), question=f"Which light is older, asked for time {n}?") for n in range(RUNS))
    with TemporaryDirectory() as folder, live_feed(folder) as feed:
        shown = feed if live else None
        setting = Setting(model, {"web_search": Instant(page)}, NANO, concurrency=concurrency, live=shown)
        done = [t.stop async for t in run_many(tasks, setting)]
        assert live is bool(live_state(folder))
    spent = time.process_time() - start
    await model.close()
    assert done == [Stop.ANSWERED] * RUNS
    return spent


async def bare(
    url: str, concurrency: int, mode: Mode, tokenizer: TextTokenizer, page: str, *, encode: bool = False
) -> float:
    """The same requests with nothing around them: what nobody can go below with this client library.

    In token mode the ids stand ready; with `encode` the observations are tokenised, as whoever has their text must.
    """
    task = Task(id="0", question="Which light is older, asked for time 0?")
    common = {"model": "instant", "stop": ["</answer>", "<observation>", "</web_search>"], "max_tokens": 4096}
    common |= {"temperature": 1.0, "top_p": 0.9}
    messages = [message.model_dump() for message in NANO.messages(task)]
    prompt = tokenizer.encode_prompt(NANO.messages(task))[1]
    page = f"\n<observation>{page}</observation>\n"
    page_ids = tokenizer.encode([page])[0]

    def chat(text: str, ids: list[int]) -> tuple[str, dict[str, object]]:
        return "chat/completions", {**common, "messages": [*messages, {"role": "assistant", "content": text}]}

    def tokens(text: str, ids: list[int]) -> tuple[str, dict[str, object]]:
        extra = {"top_k": 20, "logprobs": 0, "return_token_ids": True, "include_stop_str_in_output": True}
        return "completions", {**common, **extra, "prompt": ids}

    ask = chat if mode is Mode.CHAT else tokens
    jobs = iter(range(RUNS))

    async def work(session: aiohttp.ClientSession) -> None:
        for _ in jobs:
            text, ids = "", list(prompt)
            for turn in range(TURNS + 1):
                path, body = ask(text, ids)
                async with session.post(f"{url}/{path}", data=orjson.dumps(body)) as response:
                    choice = orjson.loads(await response.read())["choices"][0]
                if mode is Mode.CHAT:
                    assert choice["message"]["content"] == say(turn)
                    text += say(turn) + page
                else:
                    assert choice["text"] == say(turn)
                    ids += choice["token_ids"] + (tokenizer.encode([page])[0] if encode else page_ids)

    start = time.process_time()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=512)) as session:
        await asyncio.gather(*(work(session) for _ in range(concurrency)))
    return time.process_time() - start


def main() -> None:
    global RUNS
    RUNS = int(sys.argv[2]) if sys.argv[2:] else RUNS
    page = SENTENCE * max(int(sys.argv[1]) // len(SENTENCE) if sys.argv[1:] else 4, 1)
    server = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.instant_server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    url = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
    tokenizer = load_tokenizer("smollm2")
    figures = list[Figure]()
    try:
        for concurrency in (64, 256):
            print(f"concurrency {concurrency}: CPU ms per run of 4 model calls and 3 tool calls")
            for mode in (Mode.CHAT, Mode.TOKENS):
                works = {
                    BARE: partial(bare, url, concurrency, mode, tokenizer, page),
                    "bare, and the tokenizer": partial(bare, url, concurrency, mode, tokenizer, page, encode=True),
                    "coa": partial(ours, url, concurrency, mode, tokenizer, page),
                    "coa with a live feed": partial(ours, url, concurrency, mode, tokenizer, page, live=True),
                }
                if mode is Mode.CHAT:
                    del works["bare, and the tokenizer"]
                figures += _figures(f"{mode.value} mode, {concurrency} at a time", mode, _milliseconds(works))
    finally:
        server.terminate()
    print(f"-> {save('runtime', ' '.join(['python -m benchmarks.runtime', *sys.argv[1:]]), figures)}")


def _figures(what: str, mode: Mode, spent: Mapping[str, float]) -> list[Figure]:
    """Prints them, too."""
    made = [Figure(f"{what}: {BARE}, client CPU per run", round(spent[BARE], 3), "ms")]
    print(f"  {mode.value + ' mode':<12} {BARE:<24} {spent[BARE]:6.2f}")
    for name, value in spent.items():
        if name != BARE:
            goal = f"at most {GOALS[mode]:g}" if name == "coa" else ""
            made.append(Figure(f"{what}: {name}", round(value / spent[BARE], 2), beside=BARE, goal=goal))
            print(f"  {mode.value + ' mode':<12} {name:<24} {value:6.2f}   {made[-1].value:.2f} x  {goal}")
    return made


def _milliseconds(works: Mapping[str, Callable[[], Coroutine[None, None, float]]]) -> dict[str, float]:
    """The least of several rounds; in turn, so that a busy neighbour meets all of them."""
    least = dict.fromkeys(works, math.inf)
    for _ in range(ROUNDS):
        for name, work in works.items():
            least[name] = min(least[name], 1000 * asyncio.run(work()) / RUNS)
    return least


if __name__ == "__main__":
    main()
