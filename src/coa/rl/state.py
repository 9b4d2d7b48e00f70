"""Checkpoints: everything that decides how a run goes on, which is trained weights, optimiser, counters, surplus
groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import orjson
import torch

from coa.rl.config import RlConfig
from coa.rl.groups import Group, RewardedAttempt, keep, mean_advantages
from coa.rl.guards import Watch
from coa.rl.tasks import Sampler
from coa.rl.update import Trainer
from coa.training import checkpoint
from coa.trajectory import Trajectory, read

_WEIGHTS, _OPTIMIZER, _STATE, _SURPLUS = "weights.safetensors", "optimizer.pt", "state.json", "surplus.jsonl"


def save(
    out: Path,
    step: int,
    trainer: Trainer,
    drawing: dict[str, Any],
    watch: Watch,
    surplus: Sequence[Group],
    config: RlConfig,
) -> None:
    """`drawing` is the sampler's state before anything was drawn for a later step: that is drawn again."""
    folder = out / f"{checkpoint.PREFIX}{step}"
    folder.mkdir()
    trainer.policy.save_weights(folder / _WEIGHTS)
    torch.save({"optimizer": trainer.optimizer.state_dict(), "rng": torch.get_rng_state()}, folder / _OPTIMIZER)
    keep(surplus, folder / _SURPLUS, lambda group: mean_advantages(group, config), used=())
    state = {"updates": trainer.updates, "sampler": drawing, "watch": watch.state()}
    (folder / _STATE).write_bytes(orjson.dumps(state))
    checkpoint.seal(folder)
    checkpoint.rotate(out, keep=config.save_total_limit)


def restore(
    folder: Path,
    trainer: Trainer,
    sampler: Sampler,
    watch: Watch,
    attempt: Callable[[Trajectory, float | None], RewardedAttempt | None],
) -> list[Group]:
    """The surplus; the rest is put where it belongs. `attempt` makes one of a trajectory and its reward."""
    trainer.policy.load_weights(folder / _WEIGHTS)
    saved = torch.load(folder / _OPTIMIZER, weights_only=True)
    trainer.optimizer.load_state_dict(saved["optimizer"])
    torch.set_rng_state(saved["rng"])
    state = orjson.loads((folder / _STATE).read_bytes())
    trainer.updates = state["updates"]
    sampler.restore(state["sampler"])
    watch.restore(state["watch"])
    return _groups(folder / _SURPLUS, attempt)


def _groups(path: Path, attempt: Callable[[Trajectory, float | None], RewardedAttempt | None]) -> list[Group]:
    groups = []
    # By number: a task may have been drawn twice.
    for _, found in groupby(read(path), key=lambda trajectory: _record(trajectory)["group"]):
        members = list(found)
        attempts = [attempt(trajectory, _record(trajectory)["reward"]) for trajectory in members]
        whole = tuple(one for one in attempts if one is not None)
        groups.append(Group(members[0].task, whole, _record(members[0])["step"]))
    return groups


def _record(trajectory: Trajectory) -> dict[str, Any]:
    record = trajectory.meta["rl"]
    assert isinstance(record, dict)
    return record
