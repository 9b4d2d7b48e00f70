"""The Ray cluster of a run: the one that the settings name, or a Ray of its own on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import ray

from coa.errors import TrainingError
from coa.rl.config import RlConfig
from coa.rl.engines.verl.settings import cluster_address, environment
from coa.runtime.config import RayConfig
from coa.runtime.on_ray import check_ray, refuse_silent, unreachable

OBJECT_STORE: Final = 500_000_000
"""Bytes of shared memory for a Ray on a machine without GPUs."""


def join_ray(config: RlConfig, out: Path) -> None:
    """Join the cluster that the settings name, or start Ray on this machine."""
    env = environment(config, out)
    os.environ.update(env)
    common: dict[str, Any] = {
        "runtime_env": {"env_vars": env},
        "namespace": f"coa-{out.resolve().name}-{os.getpid()}",
        "log_to_driver": True,
        "logging_level": "WARNING",
    }
    if address := cluster_address(config):
        check_ray(RayConfig(ray=address))
        refuse_silent(address)
        try:
            ray.init(address=address, **common)
        except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
            raise unreachable(address, error) from error
        return
    if config.verl.nnodes > 1:
        raise TrainingError(
            f"{config.verl.nnodes} nodes need a Ray cluster",
            hint="start Ray on each machine (`ray start --head`, `ray start --address HOST:6379`) and add --ray auto",
        )
    own: dict[str, Any] = {"include_dashboard": False}
    if config.verl.device == "cpu":
        # Logical processors and GPUs: they only limit how many actors Ray starts.
        slots = config.verl.world_size + config.verl.rollout_nnodes * config.verl.rollout_processes_per_node
        own |= {"num_gpus": slots, "num_cpus": 3 * slots + 9, "object_store_memory": OBJECT_STORE}
    try:
        ray.init(address="local", **common, **own)
    except Exception as error:  # Ray raises a plain Exception where its processes do not come up in time
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise TrainingError(
            f"Ray did not start on this machine: {reason}", hint="run the same command again when less else is running"
        ) from error


def reason(error: Exception) -> str:
    """Ray says much about an error; this is the line that says what happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if any("running low on memory" in line for line in lines):
        return "a machine ran out of memory, and Ray killed one of its processes"
    return lines[-1] if lines else type(error).__name__
