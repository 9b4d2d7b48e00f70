"""Scale on paper: what one RL step of web 32B and a million rollouts take, from measured unit costs.

    python -m benchmarks.scaling                                   # the figures in docs/evidence/scaling.md
    python -m benchmarks.scaling --nodes 4 --set rollout.crawls=1
    python -m benchmarks.scaling configs/rl/code-32b.toml --set rollout.programs=6 --set rollout.searches=0 ...

Unit costs and their sources are in `benchmarks/unit_costs.toml`. The size of a run on disk is measured anew each time,
and the time of the rollouts comes from `benchmarks.cluster`, which is run for one RL step.
"""

from __future__ import annotations

import argparse
import random
import struct
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.cluster import Costs, Plan, gpu_server, load_costs, report, simulate, workload
from benchmarks.simulated import Latency, Workload
from benchmarks.simulated import Plan as RunPlan
from benchmarks.virtual_clock import run_virtually
from coa.models.tokenizer import TextTokenizer, load_tokenizer
from coa.trajectory import Author, Step, Task, Tokens, Trajectory, Usage, load_profile
from coa.trajectory.store import writer

ROOT = Path(__file__).parents[1]
SAMPLED = 20_000
"""Runs that are drawn to know the mean run."""
STORED = 40
"""Runs that are written to files to know their size."""


@dataclass(frozen=True, slots=True)
class MeanRun:
    searches: float
    crawls: float
    programs: float
    model_calls: float
    written: float
    """Tokens that the model writes."""
    context: float
    """Tokens at the end, prompt and observations included."""
    read: float
    """Tokens of all contexts that the model is sent, most of which a server has in its prefix cache."""

    @property
    def tool_calls(self) -> float:
        return self.searches + self.crawls + self.programs


def mean_run(work: Workload) -> MeanRun:
    plans = [work.plan(f"run {number}") for number in range(SAMPLED)]

    def calls(tool: str) -> float:
        return fmean(plan.tools.count(tool) for plan in plans)

    return MeanRun(
        calls("web_search"), calls("crawl_page"), calls("code"),
        model_calls=fmean(len(plan.written) for plan in plans),
        written=fmean(sum(plan.written) for plan in plans),
        context=fmean(plan.context(len(plan.tools), work.prompt_tokens) + plan.written[-1] for plan in plans),
        read=fmean(
            sum(plan.context(turn, work.prompt_tokens) for turn in range(len(plan.written))) for plan in plans
        ),
    )  # fmt: skip


def bytes_on_disk(work: Workload, tokenizer: TextTokenizer) -> dict[str, float]:
    """Mean size of a run in the files that coa writes, with ids and logprobs of what the model wrote.

    The words are those of this project's documentation, so that Parquet compresses them as it compresses English.
    """
    words = " ".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").rglob("*.md")))
    ids = tokenizer.encode([words.replace("<", "(")])[0]
    rng = random.Random(0)
    runs = [_trajectory(number, work.plan(f"run {number}"), ids, rng, tokenizer) for number in range(STORED)]
    sizes = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("jsonl", "parquet"):
            path = Path(folder) / f"runs.{kind}"
            with writer(path) as file:
                for run in runs:
                    file.write(run)
            sizes[kind] = path.stat().st_size / STORED
    return sizes


def _trajectory(number: int, plan: RunPlan, ids: list[int], rng: random.Random, tokenizer: TextTokenizer) -> Trajectory:
    def cut(count: int) -> list[int]:
        start = rng.randrange(len(ids) - count)
        return ids[start : start + count]

    steps = []
    for turn, count in enumerate(plan.written):
        sampled = cut(count)
        logprobs = tuple(struct.unpack("f", struct.pack("f", -rng.expovariate(2.0)))[0] for _ in sampled)
        tokens = Tokens(ids=tuple(sampled), logprobs=logprobs)
        agent = plan.tools[turn] if turn < len(plan.tools) else "answer"
        steps.append(Step(agent=agent, author=Author.MODEL, text=tokenizer.decode(sampled), tokens=tokens))
        if turn < len(plan.tools):
            seen = tokenizer.decode(cut(plan.observed[turn]))
            meta = {"ok": True, "seconds": rng.random(), "source": "Serper"}
            steps.append(Step(agent="observation", author=Author.ENVIRONMENT, text=seen, meta=meta))
    profile, task = load_profile("web"), Task(id=str(number), question=f"Which light is older, {number}?", answer="x")
    return Trajectory(
        task=task, profile="web", profile_hash=profile.hash, steps=tuple(steps), prompt=tuple(profile.messages(task)),
        tokenizer=tokenizer.fingerprint, usage=Usage(completion_tokens=sum(plan.written)),
    )  # fmt: skip


def update_s(costs: Costs, tokens: float, gpus: int) -> float:
    """Time of an update: forward, forward again (gradient checkpointing), backward, and a forward for old logprobs."""
    flops = (2 + 2 + 4 + 2) * costs["model"]["parameters"] * tokens
    return flops / (gpus * costs["gpu"]["tflops"] * 1e12 * costs["gpu"]["training_share"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", nargs="?", type=Path, default=ROOT / "configs" / "rl" / "web-32b.toml")
    parser.add_argument("--nodes", type=int, default=8, help="Machines with GPUs; each also runs one process of coa.")
    parser.add_argument("--gpus-per-node", type=int, default=8)
    parser.add_argument("--tensor-parallel", type=int, default=4, help="GPUs of one model server.")
    parser.add_argument("--rollouts", type=int, default=1_000_000, help="For the second part.")
    parser.add_argument("--set", action="append", default=[], metavar="TABLE.NAME=NUMBER", help="Another unit cost.")
    given = parser.parse_args()
    costs, tokenizer = load_costs(given.set), load_tokenizer("smollm2")
    gpus = given.nodes * given.gpus_per_node
    recipe = Recipe.read(given.config)
    work = workload(costs)
    run, sizes = mean_run(work), bytes_on_disk(work, tokenizer)
    show_run(run, sizes, work, tokenizer)
    plan = Plan(
        runs=recipe.rollouts, group=recipe.attempts,
        servers=[gpu_server(costs, given.tensor_parallel)] * (gpus // given.tensor_parallel),
        clients=given.nodes, concurrency=recipe.rollouts, work=work, search=Latency(**costs["search"]),
        crawl=Latency(**costs["crawl"]), sandbox=Latency(costs["sandbox"]["median_s"], costs["sandbox"]["p95_s"]),
    )  # fmt: skip
    print(f"\none RL step of {given.config.name} on {given.nodes} x {given.gpus_per_node} GPUs, its rollouts simulated")
    show_step(recipe, run, sizes, costs, gpus, report(plan, run_virtually(simulate(plan))[0]))
    print(f"\n{given.rollouts:,} rollouts on the same GPUs, {recipe.rollouts:,} at a time")
    many = replace(plan, runs=8 * plan.runs)
    show_many(given.rollouts, run, sizes, costs, report(many, run_virtually(simulate(many))[0]), gpus)


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a recipe of `coa rl` says about a step."""

    tasks: int
    trained_tasks: int
    attempts: int
    steps: int

    @classmethod
    def read(cls, path: Path) -> Recipe:
        row = tomllib.loads(path.read_text(encoding="utf-8"))
        trained = int(row["train_batch_size"])
        return cls(int(row.get("gen_batch_size", trained)), trained, int(row["num_generations"]), int(row["max_steps"]))

    @property
    def rollouts(self) -> int:
        return self.tasks * self.attempts


def show_run(run: MeanRun, sizes: Mapping[str, float], work: Workload, tokenizer: TextTokenizer) -> None:
    task = Task(id="1", question="Which is older?")
    prompt = len(tokenizer.encode_prompt(load_profile("web").messages(task))[1])
    print("a mean run")
    _print("prompt of profile web", prompt, f"tokens of SmolLM2's; {work.prompt_tokens:,} are assumed")
    parts = f"{run.searches:.1f} searches, {run.crawls:.1f} pages, {run.programs:.1f} programs"
    _print("tool calls", run.tool_calls, parts)
    _print("model calls", run.model_calls)
    _print("tokens that the model writes", run.written)
    _print("tokens in the end", run.context, "with prompt and observations")
    _print("tokens sent to the model", run.read, "over all calls, most of them known to the server")
    _print("on disk as JSONL", sizes["jsonl"] / 1e3, "kB, with ids and logprobs")
    _print("on disk as Parquet", sizes["parquet"] / 1e3, "kB")


def show_step(
    recipe: Recipe, run: MeanRun, sizes: Mapping[str, float], costs: Costs, gpus: int, found: Mapping[str, Any]
) -> None:
    rollouts, trained = recipe.rollouts, recipe.trained_tasks * recipe.attempts
    sampling, update = found["seconds"], update_s(costs, trained * run.context, gpus)
    cpu_s = rollouts * client_cpu_s(costs, run)
    _print("rollouts", rollouts, f"{recipe.tasks} tasks x {recipe.attempts}; {trained} of them are trained on")
    _print("tokens written", rollouts * run.written / 1e6, "million")
    _print("tokens trained on", trained * run.context / 1e6, "million, observations included")
    _print("time of the rollouts", sampling, f"s; half of them are over after {found['run_s']['p50']:.0f} s")
    _print("time of the update", update, "s, from FLOPs")
    servers = found["components"]["model servers"]
    _print("memory for contexts in use", 100 * servers["memory_taken"], "% of the model servers', mean")
    _print("known to the server", 100 * found["tokens_read_from_prefix_cache"], "% of the tokens sent")
    for name, count in _calls(run).items():
        _print(f"{name} a second", rollouts * count / sampling, "before the cache")
    _print("answered from the cache", 100 * found["tool_calls_from_cache"] / found["tool_calls"], "% of the tool calls")
    _print("client CPU", cpu_s, f"s: {cpu_s / sampling:.2f} cores while rollouts are made")
    parquet = rollouts * sizes["parquet"] / 1e6
    _print("storage", rollouts * sizes["jsonl"] / 1e6, f"MB as JSONL, {parquet:,.0f} MB as Parquet")
    hours = recipe.steps * (sampling + update) / 3600
    _print(f"{recipe.steps} steps", hours, f"h, {hours * gpus:,.0f} GPU hours")
    print(f"  bottleneck of the rollouts: {found['bottleneck']}")


def show_many(
    count: int, run: MeanRun, sizes: Mapping[str, float], costs: Costs, found: Mapping[str, Any], gpus: int
) -> None:
    pace, capacity = found["runs_per_hour"], costs["capacity"]
    cpu_s = client_cpu_s(costs, run)
    _print("tokens written", count * run.written / 1e9, "billion")
    _print("tokens sent", count * run.read / 1e9, "billion")
    _print("tool calls", count * run.tool_calls / 1e6, "million")
    for name, calls in _calls(run).items():
        _print(f"{name} a second", pace / 3600 * calls, "before the cache")
    parquet = count * sizes["parquet"] / 1e9
    _print("storage", count * sizes["jsonl"] / 1e9, f"GB as JSONL, {parquet:,.0f} GB as Parquet")
    alone = {
        "model servers": (3600 * count / pace, f"{gpus} GPUs: {pace:,.0f} runs an hour"),
        "search service": (count * run.searches / capacity["searches_per_s"], f"{capacity['searches_per_s']:g}/s"),
        "page reader": (count * run.crawls / capacity["pages_per_s"], f"{capacity['pages_per_s']:g}/s"),
        "client": (count * cpu_s, f"1 core: {1e3 * cpu_s:.1f} ms a run"),
        "cache of tool answers": (
            count * run.tool_calls / costs["cache"]["recorded_per_s"],
            "1 process, all of them new",
        ),
        "disk": (count * sizes["jsonl"] / 1e6 / capacity["disk_mb_s"], f"{capacity['disk_mb_s']:g} MB/s"),
        "local index instead of a service": (count * run.searches / costs["index"]["queries_per_s_core"], "1 core"),
        "own page reader": (count * run.crawls / costs["pages"]["per_s_core"], "1 core, the network not counted"),
        "sandbox, a program a run": (count / costs["sandbox"]["runs_per_s_core"], "1 core"),
    }
    print("  hours that each part would take alone:")
    for name, (seconds, with_what) in sorted(alone.items(), key=lambda row: -row[1][0]):
        _print(f"  {name}", seconds / 3600, f"with {with_what}")


def _calls(run: MeanRun) -> dict[str, float]:
    kinds = {"searches": run.searches, "pages": run.crawls, "programs": run.programs}
    return {"tool calls": run.tool_calls, **{name: count for name, count in kinds.items() if count}}


def client_cpu_s(costs: Costs, run: MeanRun) -> float:
    """CPU seconds of coa for a run in token mode: the measured run, for more calls."""
    return costs["client"]["cpu_ms_tokens"] / 1e3 * (run.model_calls + run.tool_calls) / costs["client"]["calls"]


def _print(name: str, value: float, unit: str = "") -> None:
    shown = f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:,.2f}"
    print(f"  {name:<46}{shown:>12} {unit}".rstrip())


if __name__ == "__main__":
    main()
