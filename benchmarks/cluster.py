"""A cluster on a virtual clock: many runs against simulated servers, through the real code of the client.

    python -m benchmarks.cluster                                      # 100,000 runs at once
    python -m benchmarks.cluster --runs 1024 --group 8 --nodes 8      # the rollouts of one RL step of web 32B
    python -m benchmarks.cluster --clients 1 --set crawl.median_s=1.0

`run_many`, the chain, the pool of model servers, the HTTP clients with their retries, time limits and connection
limits, the tools and their cache are those of coa; what is behind the sockets is simulated (`benchmarks/simulated.py`)
and takes the times in `benchmarks/unit_costs.toml`. The clock is virtual, so hours pass in minutes, and the same
options give the same figures. GPUs were not measured: their speed follows from a data sheet and three assumed
efficiencies, and every figure can be changed with `--set`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import random
import resource
import sys
import tempfile
import time
import tomllib
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.simulated import (
    GpuServer,
    Latency,
    Meter,
    ReaderClient,
    SandboxClient,
    SearchClient,
    SimulatedGpu,
    Workload,
    model_client,
)
from benchmarks.virtual_clock import run_virtually
from coa.http import Patience
from coa.models.base import Model, Sampling
from coa.models.pool import Connect, ModelPool, PooledServer
from coa.models.server import PATIENCE
from coa.runtime import Setting, run_many
from coa.sandbox import Sandbox
from coa.tools import Tool
from coa.tools.cache import Cache
from coa.tools.code import CodeTool
from coa.tools.crawl_page import CrawlPage
from coa.tools.recorded import RecordedTool
from coa.tools.web.fetch import Fetcher
from coa.tools.web_search import WebSearch
from coa.trajectory import Limits, Task, load_profile

COSTS: Final = Path(__file__).with_name("unit_costs.toml")
RESULT: Final = Path(__file__).with_name("results") / "cluster.json"

Costs = Mapping[str, Mapping[str, float]]


def load_costs(changes: Sequence[str] = ()) -> Costs:
    """The table of unit costs, with changes of the form `table.name=number`."""
    costs: dict[str, dict[str, float]] = tomllib.loads(COSTS.read_text(encoding="utf-8"))
    for change in changes:
        key, _, value = change.partition("=")
        table, _, name = key.partition(".")
        if name not in costs.get(table, {}):
            known = ", ".join(f"{table}.{name}" for table, row in costs.items() for name in row)
            raise SystemExit(f"error: there is no unit cost {key!r}\n  hint: --set NAME=NUMBER with one of {known}")
        try:
            costs[table][name] = float(value)
        except ValueError:
            raise SystemExit(f"error: {change!r} is not of the form NAME=NUMBER") from None
    return costs


def gpu_server(costs: Costs, tensor_parallel: int) -> GpuServer:
    """A server of the model on that many GPUs. Decoding is limited by the memory's bandwidth, prefill by arithmetic."""
    gpu, model = costs["gpu"], costs["model"]
    weights = model["parameters"] * model["bytes_per_parameter"]
    bandwidth = tensor_parallel * gpu["bandwidth_gb_s"] * 1e9 * gpu["bandwidth_share"]
    free = tensor_parallel * gpu["memory_gb"] * 1e9 * gpu["memory_share"] - weights
    if free <= 0:
        raise SystemExit(
            f"error: the weights ({weights / 1e9:.0f} GB) do not fit on {tensor_parallel} GPUs of "
            f"{gpu['memory_gb']:g} GB\n  hint: use a larger --tensor-parallel"
        )
    return GpuServer(
        step_s=weights / bandwidth,
        step_s_per_token=model["kv_bytes_per_token"] / bandwidth,
        prefill_tokens_s=tensor_parallel * gpu["tflops"] * 1e12 * gpu["flops_share"] / (2 * model["parameters"]),
        kv_tokens=int(free / model["kv_bytes_per_token"]),
        sequences=int(model["max_sequences"]),
    )


def workload(costs: Costs) -> Workload:
    means = ("searches", "crawls", "programs")
    row: dict[str, Any] = {name: x if name in means else int(x) for name, x in costs["rollout"].items()}
    return Workload(**row)


@dataclass(frozen=True, slots=True)
class Plan:
    """A simulation."""

    runs: int
    group: int
    """Attempts at each task."""
    servers: Sequence[GpuServer]
    clients: int
    """Processes of coa, among which the runs are divided; each has connections and a cache of its own."""
    concurrency: int
    """Runs at a time, over all clients."""
    work: Workload
    search: Latency
    crawl: Latency
    sandbox: Latency
    sandbox_hosts: int = 1
    sandbox_workers: int = 32
    seconds: float = 1800.0
    """Time limit of a run."""
    cache: bool = True
    seed: int = 0


@dataclass
class Outcome:
    """What a simulation found."""

    seconds: float
    """On the virtual clock."""
    stops: Counter[str] = field(default_factory=Counter)
    ended: Counter[tuple[str, int]] = field(default_factory=Counter)
    durations: array[float] = field(default_factory=lambda: array("d"))
    model_tokens: int = 0
    model_calls: int = 0
    tool_calls: int = 0
    failed_tool_calls: int = 0
    cached_tool_calls: int = 0
    gpus: Sequence[SimulatedGpu] = ()
    wires: Meter = field(default_factory=Meter)
    """Connections to model servers."""
    tools: Mapping[str, Meter] = field(default_factory=dict)
    peak_bytes: int = 0
    """Resident memory of this process at its peak, less what it had before."""


async def simulate(plan: Plan) -> Outcome:
    loop = asyncio.get_running_loop()
    random.seed(plan.seed)  # the pauses between attempts have jitter
    gpus = [SimulatedGpu(speed) for speed in plan.servers]
    outcome = Outcome(0.0, gpus=gpus, tools={name: Meter() for name in ("web_search", "crawl_page", "code")})
    hosts = [asyncio.Semaphore(plan.sandbox_workers) for _ in range(plan.sandbox_hosts)]
    outcome.tools["code"].places = plan.sandbox_hosts * plan.sandbox_workers
    before = _resident()
    shares = [len(range(client, plan.runs // plan.group, plan.clients)) for client in range(plan.clients)]
    async with AsyncExitStack() as stack:
        clients = [await _open_client(plan, number, gpus, hosts, outcome, stack) for number in range(plan.clients)]
        works = (_work(plan, number, setting, outcome) for number, setting in enumerate(clients) if shares[number])
        await asyncio.gather(*works)
        outcome.seconds = loop.time()
    outcome.peak_bytes = max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before, 0)
    return outcome


async def _open_client(
    plan: Plan, number: int, gpus: Sequence[SimulatedGpu], hosts: Sequence[asyncio.Semaphore], outcome: Outcome,
    stack: AsyncExitStack,
) -> Setting:  # fmt: skip
    def connecting(index: int, gpu: SimulatedGpu) -> Connect:
        async def connect(patience: Patience) -> Model:
            return model_client(index, gpu, plan.work, outcome.wires)

        return connect

    servers = [PooledServer(f"http://gpu{index}:8000", connecting(index, gpu)) for index, gpu in enumerate(gpus)]
    model = ModelPool(servers, PATIENCE)
    await model.open()
    stack.push_async_callback(model.close)
    rng = random.Random(f"{plan.seed} {number}")
    meters = outcome.tools
    tools: dict[str, Tool] = {
        "web_search": WebSearch(SearchClient(plan.search, rng, meters["web_search"])),
        "crawl_page": CrawlPage(Fetcher(resolve=_resolve), jina=ReaderClient(plan.crawl, rng, meters["crawl_page"])),
    }
    if plan.work.programs:
        sandbox = SandboxClient(hosts, plan.sandbox, rng, meters["code"])
        tools["code"] = _Programs(sandbox)
    if plan.cache:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="coa-cluster-"))
        cache = Cache(Path(folder) / "cache.sqlite")
        stack.callback(cache.close)
        tools = {name: RecordedTool(name, tool, cache) for name, tool in tools.items()}
    profile = load_profile("web")
    limits = Limits(**{**profile.limits.model_dump(), "seconds": plan.seconds})
    concurrency = max(plan.concurrency // plan.clients, 1)
    setting = Setting(model, tools, profile, Sampling(seed=0), limits, concurrency=concurrency)
    return Setting(model, tools, setting.with_tools(profile), Sampling(seed=0), limits, concurrency=concurrency)


async def _resolve(host: str, port: int) -> Sequence[str]:
    return ["93.184.215.14"]


class _Programs(CodeTool):
    """The code agent with a sandbox that is open already."""

    def __init__(self, sandbox: Sandbox) -> None:
        super().__init__()
        self._sandbox = sandbox


async def _work(plan: Plan, client: int, setting: Setting, outcome: Outcome) -> None:
    def tasks() -> Iterator[Task]:
        for number in range(client, plan.runs // plan.group, plan.clients):
            yield Task(id=str(number), question=f"question {number}")

    async for run in run_many(tasks(), setting, samples=plan.group, watch_s=1e6):
        outcome.stops[run.stop.value] += 1
        outcome.ended[run.key] += 1
        outcome.durations.append(run.usage.seconds)
        outcome.model_tokens += run.usage.completion_tokens
        outcome.model_calls += run.usage.model_calls
        outcome.tool_calls += run.usage.tool_calls
        for step in run.steps:
            outcome.failed_tool_calls += step.agent == "observation" and not step.meta.get("ok", True)
            outcome.cached_tool_calls += step.meta.get("cache") == "hit"


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


# ---- what it means


def report(plan: Plan, outcome: Outcome) -> dict[str, Any]:
    """The figures of a simulation, as JSON can hold them."""
    runs, seconds = sum(outcome.stops.values()), outcome.seconds
    gpus = outcome.gpus
    waits = {
        "a connection to a model server": sum(outcome.wires.waited),
        "a place in the batch of a model server": sum(sum(gpu.meter.waited) for gpu in gpus),
        "a connection for web_search": sum(outcome.tools["web_search"].waited),
        "a connection for crawl_page": sum(outcome.tools["crawl_page"].waited),
        "a worker of a sandbox host": sum(outcome.tools["code"].waited),
    }
    works = {
        "prefill and decoding": sum(sum(gpu.meter.took) for gpu in gpus),
        **{name: sum(meter.took) for name, meter in outcome.tools.items()},
    }
    lost = outcome.wires.lost_s + sum(meter.lost_s for meter in outcome.tools.values())
    tokens = sum(gpu.decoded_tokens for gpu in gpus)
    read = sum(gpu.prefilled_tokens + gpu.cached_tokens for gpu in gpus)
    waiting, working = max(waits, key=waits.__getitem__), max(works, key=works.__getitem__)
    queued = waits[waiting] > 0.05 * sum(outcome.durations)
    return {
        "runs": runs,
        "ended_once": all(times == 1 for times in outcome.ended.values()) and runs == len(outcome.ended),
        "stops": dict(sorted(outcome.stops.items())),
        "seconds": seconds,
        "runs_per_hour": 3600 * runs / seconds,
        "run_s": _quantiles(outcome.durations),
        "model_calls_per_s": outcome.model_calls / seconds,
        "tokens_written": outcome.model_tokens,
        "tokens_written_per_s": tokens / seconds,
        "tokens_read_from_prefix_cache": sum(gpu.cached_tokens for gpu in gpus) / max(read, 1),
        "tool_calls": outcome.tool_calls,
        "tool_calls_per_s": outcome.tool_calls / seconds,
        "tool_calls_failed": outcome.failed_tool_calls,
        "tool_calls_from_cache": outcome.cached_tool_calls,
        "waiting_s_per_run": {name: total / runs for name, total in waits.items()},
        "working_s_per_run": {name: total / runs for name, total in works.items()},
        "given_up_s_per_run": lost / runs,
        "bottleneck": waiting if queued else f"none; most of the time is {working}",
        "components": {
            "model servers": {
                **_meter(_sum([gpu.meter for gpu in gpus]), seconds),
                "busy": sum(gpu.busy_s for gpu in gpus) / len(gpus) / seconds,
                "memory_taken": sum(gpu.held_token_s / gpu.speed.kv_tokens for gpu in gpus) / len(gpus) / seconds,
                "most_waiting": max(gpu.most_waiting for gpu in gpus),
            },
            "connections to them": _meter(outcome.wires, seconds),
            **{name: _meter(meter, seconds) for name, meter in outcome.tools.items() if meter.calls or meter.failed},
        },
        "memory_bytes_per_run_at_once": outcome.peak_bytes / min(plan.concurrency, runs),
    }


def _sum(meters: Sequence[Meter]) -> Meter:
    whole = Meter()
    for meter in meters:
        whole.add(meter)
    return whole


def _meter(meter: Meter, seconds: float) -> dict[str, Any]:
    taken = meter.mean_taken(seconds)
    return {
        "calls": meter.calls,
        "given_up": meter.failed,
        "per_s": meter.calls / seconds,
        "wait_s": _quantiles(meter.waited),
        "work_s": _quantiles(meter.took),
        "places": meter.places,
        "most_at_once": meter.most,
        "utilisation": taken / meter.places if meter.places else 0.0,
    }


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    if not ordered:
        return {}
    marks = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
    return {name: ordered[min(int(mark * len(ordered)), len(ordered) - 1)] for name, mark in marks.items()}


def show(found: Mapping[str, Any]) -> None:
    stops = ", ".join(f"{count:,} {stop}" for stop, count in found["stops"].items())
    hours, pace = f"{found['seconds'] / 3600:.2f} h of virtual time", f"{found['runs_per_hour']:,.0f} an hour"
    print(f"runs          {found['runs']:,} in {hours}, {pace}: {stops}")
    print("time of a run " + ", ".join(f"{name} {value:,.0f} s" for name, value in found["run_s"].items()))
    tokens, cached = f"{found['tokens_written']:,} written", f"{found['tokens_read_from_prefix_cache']:.1%}"
    print(
        f"tokens        {tokens}, {found['tokens_written_per_s']:,.0f}/s; {cached} of those read were in a prefix cache"
    )
    cached, failed = f"{found['tool_calls_from_cache']:,} from the cache", f"{found['tool_calls_failed']:,} failed"
    print(f"tool calls    {found['tool_calls']:,}, {found['tool_calls_per_s']:,.1f}/s; {cached}, {failed}\n")
    widths = (22, 9, 10, 10, 8, 8, 10, 8, 9, 12, 7)
    titles = ("component", "calls/s", "given up", "wait p50", "p95", "p99", "work p50", "p95", "at once", "of", "used")
    _line(titles, widths)
    for name, row in found["components"].items():
        wait, work = row["wait_s"] or _NOTHING, row["work_s"] or _NOTHING
        times = (wait["p50"], wait["p95"], wait["p99"], work["p50"], work["p95"])
        counts = (f"{row['most_at_once']:,}", f"{row['places']:,}", f"{row['utilisation']:.0%}")
        calls = (f"{row['per_s']:,.1f}", f"{row['given_up']:,}")
        _line((name, *calls, *(f"{value:,.1f}" for value in times), *counts), widths)
    servers = found["components"]["model servers"]
    memory, most = f"{servers['memory_taken']:.0%} of their memory", f"{servers['most_waiting']:,} calls"
    print(f"model servers: busy {servers['busy']:.0%} of the time, {memory} in use, at most {most} waiting at one\n")
    print("seconds of a mean run")
    for kind, name in (("waiting for ", "waiting_s_per_run"), ("", "working_s_per_run")):
        for part, value in found[name].items():
            if value >= 0.005:
                print(f"  {kind + part:<56}{value:>10.2f}")
    print(f"  {'calls that were given up':<56}{found['given_up_s_per_run']:>10.2f}")
    print(f"bottleneck: {found['bottleneck']}")
    print(f"memory of the clients: {found['memory_bytes_per_run_at_once'] / 1e3:.0f} kB for each run at once")


def _line(cells: Sequence[str], widths: Sequence[int]) -> None:
    first, *others = zip(cells, widths, strict=True)
    print(f"{first[0]:<{first[1]}}" + "".join(f"{cell:>{width}}" for cell, width in others))


_NOTHING: Final = {"p50": 0.0, "p95": 0.0, "p99": 0.0, "max": 0.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100_000, help="Number of runs.")
    parser.add_argument("--group", type=int, default=8, help="Attempts at each task; equal calls come from the cache.")
    parser.add_argument("--at-once", type=int, help="Number of runs at a time. Default: all of them.")
    parser.add_argument("--clients", type=int, default=100, help="Processes of coa that share the runs.")
    parser.add_argument("--nodes", type=int, default=800, help="Machines with GPUs.")
    parser.add_argument("--gpus-per-node", type=int, default=8)
    parser.add_argument("--tensor-parallel", type=int, default=4, help="GPUs of one model server.")
    parser.add_argument("--sandbox-hosts", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=1800.0, help="Time limit of a run.")
    parser.add_argument("--no-cache", action="store_true", help="Do not keep the answers of tools.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="TABLE.NAME=NUMBER", help="Another unit cost.")
    parser.add_argument("--name", help="Name of the result in the file of results. Default: the options.")
    parser.add_argument(
        "--out", type=Path, default=RESULT, help="File of results; an entry of the same name is replaced."
    )
    given = parser.parse_args()
    if given.runs % given.group:
        raise SystemExit(f"error: {given.runs} runs are not a multiple of --group {given.group}")
    costs = load_costs(given.set)
    servers = given.nodes * given.gpus_per_node // given.tensor_parallel
    plan = Plan(
        runs=given.runs,
        group=given.group,
        servers=[gpu_server(costs, given.tensor_parallel)] * servers,
        clients=given.clients,
        concurrency=given.at_once or given.runs,
        work=workload(costs),
        search=Latency(**costs["search"]),
        crawl=Latency(**costs["crawl"]),
        sandbox=Latency(costs["sandbox"]["median_s"], costs["sandbox"]["p95_s"]),
        sandbox_hosts=given.sandbox_hosts,
        sandbox_workers=int(costs["sandbox"]["workers"]),
        seconds=given.seconds,
        cache=not given.no_cache,
        seed=given.seed,
    )
    before = gc.get_threshold()
    logging.disable(logging.WARNING)  # a server that is left out says so a thousand times
    gc.set_threshold(200_000, 50, 100)
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        outcome, _ = run_virtually(simulate(plan))
    finally:
        logging.disable(logging.NOTSET)
        gc.set_threshold(*before)
    spent = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
    found = report(plan, outcome)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    speed = plan.servers[0]
    print(
        f"{servers} model servers of {given.tensor_parallel} GPUs (assumed, see unit_costs.toml): a step takes "
        f"{1e3 * speed.step_s:.1f} ms and {1e9 * speed.step_s_per_token:.0f} ns for each token of context, prefill "
        f"{speed.prefill_tokens_s:,.0f} tokens/s, room for {speed.kv_tokens:,} tokens\n"
    )
    show(found)
    print(f"the simulation took {spent['wall_s']:.0f} s ({spent['cpu_s']:.0f} CPU s), peak memory {peak / 1e9:.1f} GB")
    _keep(
        given.out,
        given.name or " ".join(sys.argv[1:]) or "default",
        {**found, "simulation": {**spent, "peak_bytes": peak}},
        costs,
    )


def _keep(path: Path, name: str, found: Mapping[str, Any], costs: Costs) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    known[name] = {
        "command": f"python -m benchmarks.cluster {' '.join(sys.argv[1:])}".strip(),
        **found,
        "unit_costs": costs,
    }
    path.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
