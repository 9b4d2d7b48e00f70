"""The simulated cluster: its clock, its GPU server and its accounts, against cases worked by hand."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks import cluster
from benchmarks.cluster import Plan, gpu_server, load_costs, report, simulate, workload
from benchmarks.simulated import GpuServer, Latency, SimulatedGpu
from benchmarks.virtual_clock import run_virtually

STEADY = GpuServer(step_s=0.01, step_s_per_token=0.0, prefill_tokens_s=float("inf"), kv_tokens=10**6, sequences=1)
"""A hundredth of a second for a token, one sequence at a time."""
WORK = replace(
    workload(load_costs()), searches=0.0, crawls=0.0, programs=0.0, prompt_tokens=10, answer_tokens=100, steady=True
)
"""Every run is one call of the model, which writes a hundred tokens."""
PLAN = Plan(
    runs=200, group=4, servers=[gpu_server(load_costs(), 4)] * 2, clients=2, concurrency=200,
    work=workload(load_costs(["rollout.programs=1"])), search=Latency(0.6, 1.3), crawl=Latency(3.8, 11.0),
    sandbox=Latency(0.003, 0.03),
)  # fmt: skip


def test_an_hour_of_sleep_takes_no_time_and_all_clocks_agree() -> None:
    async def sleep() -> tuple[float, float, list[str]]:
        order: list[str] = []

        async def after(seconds: float, name: str) -> None:
            await asyncio.sleep(seconds)
            order.append(name)

        began = time.monotonic()
        await asyncio.gather(after(3600, "hour"), after(60, "minute"), asyncio.to_thread(order.append, "thread"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.sleep(6)
        return time.monotonic() - began, asyncio.get_running_loop().time(), order

    real = time.monotonic
    (lasted, now, order), whole = run_virtually(sleep())
    assert (lasted, now, whole) == pytest.approx((3605, 3605, 3605))
    assert order == ["thread", "minute", "hour"]
    assert time.monotonic is real


def test_a_loop_in_which_nothing_can_happen_says_so() -> None:
    async def wait() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(RuntimeError, match="no timer is set"):
        run_virtually(wait())


async def _served(speed: GpuServer, calls: list[tuple[str, int, int]]) -> tuple[list[float], SimulatedGpu]:
    """When each of the calls (run, context, new tokens), all made at once, is answered."""
    gpu = SimulatedGpu(speed)

    async def call(run: str, context: int, new: int) -> float:
        await gpu.generate(run, context, new)
        return asyncio.get_running_loop().time()

    return await asyncio.gather(*(call(*one) for one in calls)), gpu


def test_one_place_in_the_batch_serves_one_call_after_the_other() -> None:
    (ends, gpu), _ = run_virtually(_served(STEADY, [("a", 10, 100), ("b", 10, 100), ("c", 10, 50)]))
    assert ends == pytest.approx([1.0, 2.0, 2.5])
    assert list(gpu.meter.waited) == pytest.approx([0.0, 1.0, 2.0])
    assert gpu.busy_s == pytest.approx(2.5) and gpu.decoded_tokens == 250


def test_a_step_of_a_larger_batch_takes_longer() -> None:
    # Both hold 100 tokens: a step takes 0.01 + 200 x 0.0001 = 0.03 s together, 0.02 s alone.
    speed = replace(STEADY, step_s_per_token=1e-4, sequences=2)
    (ends, _), _ = run_virtually(_served(speed, [("a", 90, 10), ("b", 80, 20)]))
    assert ends == pytest.approx([10 * 0.03, 10 * 0.03 + 10 * 0.02])


def test_what_a_server_has_of_a_run_is_not_computed_again_unless_memory_was_needed() -> None:
    async def calls(kv_tokens: int) -> tuple[float, int]:
        gpu = SimulatedGpu(replace(STEADY, prefill_tokens_s=1000.0, kv_tokens=kv_tokens))
        await gpu.generate("a", 500, 100)
        await gpu.generate("b", 500, 100)
        await gpu.generate("a", 800, 100)
        return asyncio.get_running_loop().time(), gpu.prefilled_tokens

    # 0.5 s for each prompt, then the 200 tokens that are new to "a"; where "b" displaced it, all 800.
    assert run_virtually(calls(10_000))[0] == pytest.approx((0.5 + 0.5 + 0.2 + 3.0, 1200))
    assert run_virtually(calls(1_000))[0] == pytest.approx((0.5 + 0.5 + 0.8 + 3.0, 1800))


def test_a_caller_who_leaves_gives_up_the_place() -> None:
    async def leave() -> tuple[float, SimulatedGpu]:
        gpu = SimulatedGpu(STEADY)
        first = asyncio.create_task(gpu.generate("a", 10, 1000))
        second = asyncio.create_task(gpu.generate("b", 10, 100))
        await asyncio.sleep(2.0)
        first.cancel()
        await second
        return asyncio.get_running_loop().time(), gpu

    (now, gpu), _ = run_virtually(leave())
    assert now == pytest.approx(3.0) and gpu.meter.failed == 1 and gpu.meter.now == 0


def test_runs_on_one_server_with_one_place_take_the_sum_of_their_times() -> None:
    plan = replace(PLAN, runs=25, group=1, servers=[STEADY], clients=1, concurrency=25, work=WORK)
    outcome, seconds = run_virtually(simulate(plan))
    assert seconds == pytest.approx(25 * 1.0) and sum(outcome.stops.values()) == 25
    found = report(plan, outcome)
    assert found["bottleneck"] == "a place in the batch of a model server"
    assert found["waiting_s_per_run"]["a place in the batch of a model server"] == pytest.approx(sum(range(25)) / 25)
    assert found["components"]["model servers"]["utilisation"] == pytest.approx(1.0)


def test_every_run_ends_once_and_what_went_out_came_back() -> None:
    outcome, seconds = run_virtually(simulate(PLAN))
    assert len(outcome.ended) == 200 and set(outcome.ended.values()) == {1}
    assert {key[1] for key in outcome.ended} == set(range(4))
    assert sum(outcome.stops.values()) == 200 and outcome.stops["failed"] == 0
    gpus = outcome.gpus
    assert sum(gpu.meter.calls for gpu in gpus) == outcome.model_calls == outcome.wires.calls
    assert sum(gpu.decoded_tokens for gpu in gpus) == outcome.model_tokens
    assert all(meter.now == 0 for meter in (*outcome.tools.values(), outcome.wires, *(gpu.meter for gpu in gpus)))
    calls = sum(meter.calls for meter in outcome.tools.values())
    # The rest waited for an equal call that was under way.
    assert 0 < calls < calls + outcome.cached_tool_calls <= outcome.tool_calls
    assert outcome.tools["code"].calls > 0 and outcome.cached_tool_calls > 0
    again, same = run_virtually(simulate(PLAN))
    assert (same, again.stops, list(again.durations)) == (seconds, outcome.stops, list(outcome.durations))


def test_the_command_prints_a_table_and_keeps_the_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results.json"
    arguments = ["cluster", "--runs", "32", "--nodes", "1", "--clients", "1", "--name", "small", "--out", str(out)]
    monkeypatch.setattr("sys.argv", arguments)
    cluster.main()
    assert "bottleneck:" in capsys.readouterr().out
    kept = json.loads(out.read_text())["small"]
    assert kept["runs"] == 32 and kept["ended_once"] and kept["unit_costs"]["gpu"]["memory_gb"] == 80
    assert logging.root.manager.disable == logging.NOTSET, "warnings are heard again"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--set", "gpu.colour=1"], "there is no unit cost 'gpu.colour'"),
        (["--set", "gpu.tflops=many"], "is not of the form"),
        (["--tensor-parallel", "1", "--set", "gpu.memory_gb=40"], "do not fit on 1 GPUs"),
        (["--runs", "33"], "not a multiple of --group 8"),
    ],
)
def test_options_that_cannot_be_are_refused(options: list[str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["cluster", *options])
    with pytest.raises(SystemExit, match=said):
        cluster.main()
