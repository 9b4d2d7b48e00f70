"""Weights from the trainer to engines on other processes, through Ray's object store: `separate_async` without NCCL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import ray
import torch
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

from coa.rl.engines.verl.settings import CPU_CHECKPOINT_ENGINE

NAME: Final = "coa-weights"
WAIT_S, POLL_S = 120.0, 0.1


class Mailbox:
    """Holds the newest weights, with their version."""

    def __init__(self) -> None:
        self._version: int | None = None
        self._weights: list[Any] = []

    def put(self, version: int | None, weights: list[Any]) -> None:
        """A reference in a list is kept as a reference."""
        self._version, self._weights = version, weights

    def get(self, version: int | None) -> list[Any]:
        return self._weights if self._version == version else []


def mailbox() -> Any:
    return ray.remote(num_cpus=0)(Mailbox).options(name=NAME, get_if_exists=True).remote()


@CheckpointEngineRegistry.register(CPU_CHECKPOINT_ENGINE)
class ObjectStoreEngine(CheckpointEngine):  # type: ignore[misc]
    def __init__(self, bucket_size: int, is_master: bool = False, **_: Any) -> None:
        self.is_master = is_master
        self._mailbox = mailbox()

    def prepare(self) -> dict[str, Any]:
        return {}

    @classmethod
    def build_topology(cls, actors: int, rollouts: int, metadata: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"role": ["actor"] * actors}, {"role": ["rollout"] * rollouts}

    def init_process_group(self, **_: Any) -> None: ...

    def finalize(self) -> None: ...

    async def send_weights(self, weights: Any, global_steps: int | None = None) -> None:
        gathered = {name: weight.detach().float().cpu().numpy().copy() for name, weight in weights}
        if self.is_master:
            await self._mailbox.put.remote(global_steps, [ray.put(gathered)])

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, torch.Tensor]]:
        for _ in range(int(WAIT_S / POLL_S)):
            if found := await self._mailbox.get.remote(global_steps):
                break
            await asyncio.sleep(POLL_S)
        else:
            raise TimeoutError(f"no weights of step {global_steps} came within {WAIT_S:g} s")
        for name, value in (await found[0]).items():
            yield name, torch.from_numpy(value.copy())
