"""Whole runs through verl's trainer, in real Ray actors, with FSDP2 on gloo: a model of random weights learns to call a
tool and to repeat what it says."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coa.config import load_config
from coa.models.base import Sampling
from coa.models.local import load_local
from coa.rl.config import RlConfig
from coa.runtime import Setting, run_many
from coa.trajectory import load_profile, read
from coa.trajectory.formats.tasks import read_tasks
from support.newborn import Knowing
from support.verl_runs import config_file, environment, metrics, rl


def gaps(rows: list[dict[str, Any]]) -> list[float]:
    return [row["prob_diff_max"] for row in rows]


def learnt(rows: list[dict[str, Any]]) -> None:
    """Within 30 steps, and for good."""
    success = [row["success"] for row in rows]
    assert [row["step"] for row in rows] == list(range(1, 31))
    assert success[0] < 0.4 and max(success) > 0.9 and min(success[-3:]) > 0.8, success


def solved(model: Path, folder: Path) -> float:
    """The share of 48 attempts that coa's own engine solves with a merged model."""
    config = load_config(RlConfig, folder / "config.toml")
    profile, sampler = load_profile(config.profile), load_local(model)

    async def runs() -> list[bool]:
        setting = Setting(
            sampler, {"web_search": Knowing()}, profile, sampling=Sampling(1.0, 1.0, 0, 2, seed=7),
            limits=config.limits(profile), prompt=lambda task: task.prompt,
        )  # fmt: skip
        try:
            tasks = list(read_tasks(str(config.tasks)))
            return [run.answer in run.task.answer async for run in run_many(tasks, setting, samples=8)]
        finally:
            await sampler.close()

    right = asyncio.run(runs())
    assert len(right) == 48
    return sum(right) / 48


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_newborn_model_learns_to_call_a_tool(seed: int, tmp_path: Path) -> None:
    out = tmp_path / "run"
    rl(config_file(tmp_path, seed=seed), out)
    rows = metrics(out)
    learnt(rows)
    assert max(gaps(rows)) < 1e-5 and max(row["logprob_diff_max"] for row in rows) < 1e-4
    assert all(row["staleness"] == 0 for row in rows), "each step samples with the weights of the step before"
    last = list(read(out / "groups" / "step-0030.jsonl"))
    assert {trajectory.meta["rl"]["step"] for trajectory in last} == {30}  # type: ignore[index, call-overload]
    used = [trajectory for trajectory in last if trajectory.meta["rl"]["learnt"]]  # type: ignore[index, call-overload]
    assert len(used) == 6 * 24 and all("advantage" in trajectory.scores for trajectory in used)
    assert solved(out / "model", tmp_path) > 0.9, "the merged model is the one that has learnt"
    card = (out / "model" / "README.md").read_text()
    assert "chain-of-agents" in card and "on verl 0.9.1" in card
    assert "finished already" in rl(tmp_path / "config.toml", out)


def test_two_processes_with_a_reference_model_and_held_out_tasks(tmp_path: Path) -> None:
    held_out = tmp_path / "held_out.jsonl"
    row = {"id": "h", "question": "q0 ?", "answer": "a0", "prompt": [{"role": "user", "content": "q0"}]}
    held_out.write_text(json.dumps(row))
    config = config_file(
        tmp_path, verl__gpus_per_node=2, kl_coef=0.05, eval_tasks=str(held_out), eval_steps=15, save_steps=15
    )
    rl(config, tmp_path / "run")
    rows = metrics(tmp_path / "run")
    learnt(rows)
    assert max(gaps(rows)) < 1e-5
    assert rows[-1]["kl"] > 0, "after updates the policy differs from the reference model"
    looks = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in looks if "held_out_answered" in row] == [0, 15, 30]
    (looked,) = read(tmp_path / "run" / "agent" / "step-30" / "trajectories.jsonl")
    assert looked.task.id == "h" and looked.scores["success"].value is not None
    shards = list((tmp_path / "run" / "verl" / "checkpoints" / "global_step_30" / "actor").glob("model_*"))
    assert len(shards) == 2


def test_attempts_can_be_made_ahead_on_the_same_devices(tmp_path: Path) -> None:
    rl(config_file(tmp_path, verl__trainer_mode="colocate_async"), tmp_path / "run")
    rows = metrics(tmp_path / "run")
    learnt(rows)
    assert max(row["staleness"] for row in rows) > 0, "attempts of later steps were begun early"
    assert max(row["logprob_diff_max"] for row in rows if "logprob_diff_max" in row) < 1e-4


def test_attempts_can_be_made_ahead_on_other_devices(tmp_path: Path) -> None:
    changed = {"max_steps": 6, "num_mini_batches": 1, "verl__trainer_mode": "separate_async", "max_staleness": 2}
    rl(config_file(tmp_path, **changed), tmp_path / "run")
    rows = metrics(tmp_path / "run")
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert all(row["staleness"] <= 2 for row in rows)
    sampled_with = [row["step"] - 1 - row["staleness"] for row in rows]  # versions of the weights, on average
    assert sampled_with[0] == 0 and sampled_with == sorted(sampled_with) and sampled_with[-1] >= 3
    fresh = [row["logprob_diff_max"] for row in rows if "logprob_diff_max" in row]
    assert fresh and max(fresh) < 1e-4, "the engine has the weights that the trainer sent"


@pytest.fixture
def two_nodes() -> Iterator[str]:
    """The address of a cluster of two raylets on this machine, which know nothing of coa."""
    code = (
        "import sys, time\n"
        "from ray.cluster_utils import Cluster\n"
        "args = dict(num_cpus=12, num_gpus=1, include_dashboard=False, object_store_memory=200_000_000)\n"
        "cluster = Cluster(initialize_head=True, head_node_args={**args, 'node_ip_address': '127.0.0.2'})\n"
        "del args['include_dashboard']\n"
        "cluster.add_node(**args, node_ip_address='127.0.0.3')\n"
        "print(cluster.address, flush=True)\n"
        "sys.stdin.read()\n"
        "cluster.shutdown()\n"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env=environment(RAY_USAGE_STATS_ENABLED="0"),
    )  # fmt: skip
    assert running.stdout is not None and running.stdin is not None
    try:
        address = next(line for line in iter(running.stdout.readline, b"") if line.startswith(b"127.")).decode().strip()
        yield address
    finally:
        running.stdin.close()
        running.wait(60)


def test_two_nodes_of_a_ray_cluster_train_together(two_nodes: str, tmp_path: Path) -> None:
    config = config_file(tmp_path, verl__nnodes=2)
    doctor = [sys.executable, "-m", "coa", "doctor", str(config), "--engine", "verl", "--ray", two_nodes]
    done = subprocess.run(doctor, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.count("web_search") == 2, done.stdout + done.stderr
    rl(config, tmp_path / "run", "--ray", two_nodes)
    rows = metrics(tmp_path / "run")
    learnt(rows)
    assert max(gaps(rows)) < 1e-5
    assert (tmp_path / "run" / "model" / "config.json").is_file()


def test_more_gpus_than_the_cluster_has_are_refused(two_nodes: str, tmp_path: Path) -> None:
    config = config_file(tmp_path, max_steps=2, verl__nnodes=2, verl__gpus_per_node=2)
    assert "the run needs 4 GPUs, and the cluster has 2" in rl(config, tmp_path / "run", "--ray", two_nodes, code=1)
