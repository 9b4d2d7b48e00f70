"""The far ends of a cluster, simulated: GPU servers, a search service, a page reader, sandbox hosts.

Only what lies behind a socket is replaced. `Wire` stands where aiohttp's session is, so clients, retries, time limits,
connection limits, the pool of model servers, the cache and the chain are the code that runs in earnest. Each end
answers after the time that it would take, on whatever clock the event loop has.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import random
from array import array
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

import aiohttp
import orjson

from coa.models.chat import ChatModel
from coa.models.dialects import Dialect
from coa.models.server import ModelServer
from coa.sandbox.remote import RemoteSandbox
from coa.tools.search_engines import Serper
from coa.tools.web.jina import JinaReader

Answer = Callable[[str, Any], Awaitable[Mapping[str, Any]]]
"""What the far end answers to a path and a body."""


class Meter:
    """How much a part was used: calls, how long they waited and took, and how many of its places were taken."""

    def __init__(self) -> None:
        self.places = 0
        """How many calls it can work on at a time."""
        self.calls = self.failed = self.now = self.most = 0
        self.lost_s = 0.0
        """Time of calls that were given up."""
        self.waited, self.took = array("d"), array("d")
        self._area, self._since = 0.0, 0.0

    def change(self, by: int, at: float) -> None:
        """Another number of places is taken from now on."""
        self._area += self.now * (at - self._since)
        self._since, self.now = at, self.now + by
        self.most = max(self.most, self.now)

    def done(self, waited: float, took: float) -> None:
        self.calls += 1
        self.waited.append(waited)
        self.took.append(took)

    def give_up(self, spent_s: float) -> None:
        self.failed += 1
        self.lost_s += spent_s

    def add(self, other: Meter) -> None:
        """Count another part of the same kind with this one."""
        self.places, self.most = self.places + other.places, self.most + other.most
        self.calls, self.failed = self.calls + other.calls, self.failed + other.failed
        self.waited.extend(other.waited)
        self.took.extend(other.took)
        self._area += other._area

    def mean_taken(self, seconds: float) -> float:
        """Mean number of places that were taken in the first `seconds` of the simulation."""
        return (self._area + self.now * (seconds - self._since)) / seconds if seconds else 0.0


@dataclass(frozen=True, slots=True)
class Latency:
    """A log-normal distribution, given by what people publish: the median and the 95th percentile."""

    median_s: float
    p95_s: float

    def draw(self, rng: random.Random) -> float:
        spread = math.log(self.p95_s / self.median_s) / 1.6449
        return self.median_s * math.exp(rng.gauss(0.0, spread)) if spread else self.median_s


class Wire:
    """Stands in for `aiohttp.ClientSession`: as many requests at a time as the connector has connections."""

    def __init__(self, answer: Answer, connections: int, meter: Meter) -> None:
        self._answer, self.meter = answer, meter
        self._free = asyncio.Semaphore(connections) if connections else None
        meter.places += connections

    def request(self, method: str, url: str, *, data: Any = None, **_: Any) -> _Exchange:
        return _Exchange(self, url, data)

    def post(self, url: str, *, data: Any = None, **_: Any) -> _Exchange:
        return _Exchange(self, url, data)

    async def close(self) -> None:
        pass

    async def exchange(self, url: str, data: Any) -> Mapping[str, Any]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with self._free or nullcontext():
                start = loop.time()
                self.meter.change(1, start)
                try:
                    body = orjson.loads(data if isinstance(data, bytes) else data.read())
                    answer = await self._answer(url, body)
                finally:
                    self.meter.change(-1, loop.time())
        except BaseException:
            self.meter.give_up(loop.time() - began)
            raise
        self.meter.done(start - began, loop.time() - start)
        return answer


class _Exchange:
    """One request, as `async with session.post(...) as response` and the response in one."""

    status, content_type = 200, "application/json"
    headers: Mapping[str, str] = {}

    def __init__(self, wire: Wire, url: str, data: Any) -> None:
        self._wire, self._url, self._data = wire, url, data
        self._body = b""

    async def __aenter__(self) -> _Exchange:
        self._body = orjson.dumps(await self._wire.exchange(self._url, self._data))
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    @property
    def content(self) -> _Exchange:
        return self

    async def read(self) -> bytes:
        return self._body

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        yield self._body


# ---- a server of the model


@dataclass(frozen=True, slots=True)
class GpuServer:
    """What decides how fast a server decodes. `Hardware.server` in cluster.py works it out from a data sheet."""

    step_s: float
    """Time of a decoding step that reads the weights and no contexts."""
    step_s_per_token: float
    """Added for each token of all contexts in the batch: their keys and values are read too."""
    prefill_tokens_s: float
    kv_tokens: int
    """Tokens of contexts that fit into memory, those that wait for a tool included."""
    sequences: int
    """The largest batch."""


@dataclass(eq=False, slots=True)
class _Request:
    run: str
    context: int
    new: int
    done: asyncio.Future[None]
    arrived: float
    prefilled: asyncio.TimerHandle | None = None
    admitted: float | None = None
    """When it got its place in the batch."""
    cancelled: bool = False
    decoding: bool = False

    @property
    def held(self) -> int:
        """Tokens of memory that it needs until it has ended."""
        return self.context + self.new


@dataclass(eq=False)
class SimulatedGpu:
    """Continuous batching with a prefix cache.

    A request waits until there is a place in the batch and memory for its context. What is left of the run's earlier
    calls in memory need not be computed again; contexts of waiting runs are dropped in the order of their last use when
    the memory is needed. Prefills are made one after another. All decoding sequences then get their tokens in step, so
    one counter of steps is enough: a request that begins at step s and writes n tokens ends at step s + n. How long a
    step takes depends on the contexts in the batch at the time.
    """

    speed: GpuServer
    meter: Meter = field(default_factory=Meter)
    prefilled_tokens: int = 0
    cached_tokens: int = 0
    decoded_tokens: int = 0
    busy_s: float = 0.0
    """Time with at least one sequence in the batch."""
    held_token_s: float = 0.0
    """Tokens of the contexts in the batch, times the seconds that they were there."""
    most_waiting: int = 0
    _waiting: deque[_Request] = field(default_factory=deque)
    _ends: list[tuple[float, int, _Request]] = field(default_factory=list)
    _kept: OrderedDict[str, int] = field(default_factory=OrderedDict)
    _kept_tokens: int = 0
    _held_tokens: int = 0
    _batch: int = 0
    _changed: float = 0.0
    _decoding: int = 0
    _decoding_tokens: int = 0
    _steps: float = 0.0
    _since: float = 0.0
    _free_at: float = 0.0
    _number: int = 0
    _timer: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        self.meter.places = self.speed.sequences

    async def generate(self, run: str, context: int, new: int) -> None:
        """Returns when the server has written `new` tokens behind a context."""
        loop = asyncio.get_running_loop()
        if context + new > self.speed.kv_tokens:
            raise ValueError(f"a context of {context + new:,} tokens does not fit into {self.speed.kv_tokens:,}")
        request = _Request(run, context, new, loop.create_future(), loop.time())
        self._waiting.append(request)
        self._admit()
        self.most_waiting = max(self.most_waiting, len(self._waiting))
        try:
            await request.done
        except asyncio.CancelledError:
            self._abort(request)
            raise

    @property
    def _step_s(self) -> float:
        return self.speed.step_s + self.speed.step_s_per_token * self._decoding_tokens

    def _admit(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self._waiting and self._batch < self.speed.sequences:
            request = self._waiting[0]
            if request.cancelled:
                self._waiting.popleft()
                continue
            if self._held_tokens + request.held > self.speed.kv_tokens:
                return
            self._waiting.popleft()
            known = min(self._kept.pop(request.run, 0), request.context)
            self._kept_tokens -= known
            self._enter(request, now)
            while self._held_tokens + self._kept_tokens > self.speed.kv_tokens:
                self._kept_tokens -= self._kept.popitem(last=False)[1]
            self.cached_tokens += known
            self.prefilled_tokens += request.context - known
            request.admitted = now
            self._free_at = max(self._free_at, now) + (request.context - known) / self.speed.prefill_tokens_s
            request.prefilled = loop.call_at(self._free_at, self._decode, request)

    def _enter(self, request: _Request, now: float) -> None:
        self._count_busy(now)
        self._batch += 1
        self._held_tokens += request.held
        self.meter.change(1, now)

    def _leave(self, request: _Request, now: float) -> None:
        self._count_busy(now)
        self._batch -= 1
        self._held_tokens -= request.held
        self.meter.change(-1, now)

    def _count_busy(self, now: float) -> None:
        """Account for the time since the batch last changed."""
        if self._batch:
            self.busy_s += now - self._changed
        self.held_token_s += self._held_tokens * (now - self._changed)
        self._changed = now

    def _decode(self, request: _Request) -> None:
        self._advance()
        self._decoding += 1
        self._decoding_tokens += request.held
        request.decoding = True
        self._number += 1
        heapq.heappush(self._ends, (self._steps + request.new, self._number, request))
        self._schedule()

    def _advance(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._decoding:
            self._steps += (now - self._since) / self._step_s
        self._since = now

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._ends and self._ends[0][2].cancelled:
            heapq.heappop(self._ends)
        if self._ends:
            loop = asyncio.get_running_loop()
            left = max(self._ends[0][0] - self._steps, 0.0) * self._step_s
            self._timer = loop.call_at(loop.time() + left, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._advance()
        now = asyncio.get_running_loop().time()
        while self._ends and (self._ends[0][2].cancelled or self._ends[0][0] <= self._steps + 1e-6):
            _, _, request = heapq.heappop(self._ends)
            if request.cancelled:
                continue
            self._stop_decoding(request)
            self._leave(request, now)
            self._kept[request.run] = request.held
            self._kept_tokens += request.held
            self.decoded_tokens += request.new
            assert request.admitted is not None
            self.meter.done(request.admitted - request.arrived, now - request.admitted)
            if not request.done.done():
                request.done.set_result(None)
        self._admit()
        self._schedule()

    def _stop_decoding(self, request: _Request) -> None:
        self._decoding -= 1
        self._decoding_tokens -= request.held
        request.decoding = False

    def _abort(self, request: _Request) -> None:
        """The client has gone."""
        now = asyncio.get_running_loop().time()
        self.meter.give_up(now - request.arrived)
        request.cancelled = True
        if request.prefilled is not None:
            request.prefilled.cancel()
        if request.decoding:
            self._advance()
            self._stop_decoding(request)
        if request.admitted is not None:
            self._leave(request, now)
            self._admit()
        self._schedule()


# ---- what a run does


@dataclass(frozen=True, slots=True)
class Workload:
    """What runs do, on the average. The fields are those of `[rollout]` in unit_costs.toml."""

    prompt_tokens: int
    searches: float
    crawls: float
    programs: float
    most_calls: int
    tokens_per_call: int
    answer_tokens: int
    search_tokens: int
    crawl_tokens: int
    program_tokens: int
    distinct_queries: int
    steady: bool = False
    """Every text has the mean length, instead of one that is drawn."""

    def plan(self, run: str) -> Plan:
        """The same for the same run in every simulation. Numbers of calls are geometric, the tool of each is drawn."""
        rng = random.Random(run)
        mean = self.searches + self.crawls + self.programs
        calls = 0
        while mean and calls < self.most_calls and rng.random() < mean / (mean + 1):
            calls += 1
        weights = (self.searches, self.crawls, self.programs)
        tools = rng.choices(("web_search", "crawl_page", "code"), weights, k=calls) if calls else []
        added = {"web_search": self.search_tokens, "crawl_page": self.crawl_tokens, "code": self.program_tokens}
        sizes = [self._size(rng, self.tokens_per_call) for _ in tools] + [self._size(rng, self.answer_tokens)]
        queries = rng.sample(range(max(self.distinct_queries, calls)), calls)
        return Plan(tuple(tools), tuple(sizes), tuple(self._size(rng, added[tool]) for tool in tools), tuple(queries))

    def _size(self, rng: random.Random, mean: int) -> int:
        """Half of the mean for certain, the rest exponential, so that some are long."""
        return mean if self.steady or not mean else max(round(mean / 2 + rng.expovariate(2 / mean)), 1)


@dataclass(frozen=True, slots=True)
class Plan:
    """One run: the tools that it calls, the tokens that it writes in each turn, and the tokens of each observation."""

    tools: tuple[str, ...]
    written: tuple[int, ...]
    """One more than tools: the last is the answer."""
    observed: tuple[int, ...]
    queries: tuple[int, ...]

    def context(self, turn: int, prompt: int) -> int:
        """Tokens before that turn."""
        return prompt + sum(self.written[:turn]) + sum(self.observed[:turn])

    def text(self, turn: int, task: str) -> str:
        """What the model writes in that turn. The words are few; their number of tokens is `written`."""
        opening = "<think>I split the question.</think>\n<plan>1. Look it up.</plan>\n" if not turn else ""
        if turn == len(self.tools):
            check = "<think>It fits.</think>\n<double_check>It is what was asked.\nscore: 4</double_check>\n"
            suggested = "<think>That is it.</think>\n<suggested_answer>yes</suggested_answer>\n"
            return f"{opening}{suggested}{check}<think>Done.</think>\n<answer>yes</answer>"
        tool, query = self.tools[turn], f"{task} {self.queries[turn]}"
        asked = {
            "web_search": query,
            "crawl_page": f"https://example.org/{query.replace(' ', '/')}",
            "code": f"```python\nprint({query.split()[-1]})\n```",
        }
        return f"{opening}<think>I need {turn}.</think>\n<{tool}>{asked[tool]}</{tool}>"


# ---- the clients of coa, with a wire to a simulated end


class _ModelClient(ModelServer):
    def __init__(self, url: str, answer: Answer, meter: Meter) -> None:
        super().__init__(url)
        self._wire = Wire(answer, self._pool, meter)

    def _open(self) -> aiohttp.ClientSession:
        return cast(aiohttp.ClientSession, self._wire)


def model_client(number: int, gpu: SimulatedGpu, workload: Workload, meter: Meter) -> ChatModel:
    """A chat model of coa whose server is simulated. The server knows a run by its question and its seed."""
    plans: dict[str, Plan] = {}

    async def answer(url: str, body: Any) -> Mapping[str, Any]:
        messages = body["messages"]
        task = messages[-2 if messages[-1]["role"] == "assistant" else -1]["content"].strip()
        turn = messages[-1]["content"].count("<observation>") if messages[-1]["role"] == "assistant" else 0
        run = f"{task} sample {body['seed']}"
        plan = plans.get(run) or plans.setdefault(run, workload.plan(run))
        turn = min(turn, len(plan.tools))
        context, new = plan.context(turn, workload.prompt_tokens), min(plan.written[turn], body["max_tokens"])
        await gpu.generate(run, context, new)
        if turn == len(plan.tools):
            del plans[run]
        usage = {"prompt_tokens": context, "completion_tokens": new, "total_tokens": context + new}
        choice = {"message": {"content": plan.text(turn, task)}, "finish_reason": "stop"}
        return {"choices": [choice], "usage": usage}

    return ChatModel(_ModelClient(f"http://gpu{number}:8000", answer, meter), "simulated", Dialect.VLLM)


class SearchClient(Serper):
    """coa's client of Serper; the service answers any number of queries at once."""

    def __init__(self, latency: Latency, rng: random.Random, meter: Meter) -> None:
        super().__init__("key", "http://search")

        async def answer(url: str, body: Any) -> Mapping[str, Any]:
            await asyncio.sleep(latency.draw(rng))
            return {"organic": [{"title": body["q"], "link": "https://example.org/1", "snippet": "A page about it."}]}

        self._wire = Wire(answer, self._pool, meter)

    def _open(self) -> aiohttp.ClientSession:
        return cast(aiohttp.ClientSession, self._wire)


class ReaderClient(JinaReader):
    """coa's client of the Jina reader."""

    def __init__(self, latency: Latency, rng: random.Random, meter: Meter) -> None:
        super().__init__("key", url="http://reader")

        async def answer(url: str, body: Any) -> Mapping[str, Any]:
            await asyncio.sleep(latency.draw(rng))
            return {"data": {"title": "A page", "content": f"The page {body['url']} says so."}}

        self._wire = Wire(answer, self._pool, meter)

    def _open(self) -> aiohttp.ClientSession:
        return cast(aiohttp.ClientSession, self._wire)


class SandboxClient(RemoteSandbox):
    """coa's client of several sandbox hosts. `hosts` has the free workers of each, which all clients share."""

    def __init__(self, hosts: Sequence[asyncio.Semaphore], latency: Latency, rng: random.Random, meter: Meter) -> None:
        super().__init__([f"http://box{number}" for number in range(len(hosts))])

        async def answer(url: str, body: Any) -> Mapping[str, Any]:
            loop, host = asyncio.get_running_loop(), int(url.removeprefix("http://box").partition("/")[0])
            began = loop.time()
            async with hosts[host]:
                start = loop.time()
                meter.change(1, start)
                try:
                    await asyncio.sleep(latency.draw(rng))
                finally:
                    meter.change(-1, loop.time())
                meter.done(start - began, loop.time() - start)
            return {"verdict": "OK", "stdout": "MQo=", "exit_code": 0}

        self._session = cast(aiohttp.ClientSession, Wire(answer, 0, Meter()))
