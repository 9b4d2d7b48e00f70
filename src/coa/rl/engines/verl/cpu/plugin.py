"""What each process of verl imports at its start (VERL_USE_EXTERNAL_MODULES) where there is no GPU.

It registers the platform and the engine that samples, and patches the two places of verl 0.9.1 that assume a GPU. verl
itself is only half imported at this point, so whatever can wait is imported later.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from verl.workers.rollout import base, replica

from coa.rl.engines.verl.cpu import platform
from coa.rl.engines.verl.settings import CPU_ROLLOUT


def _replica() -> Any:
    from coa.rl.engines.verl.cpu.rollout import LocalReplica

    return LocalReplica


def _patch() -> None:
    # 1. verl asks torch for the backends "cpu:gloo,cpu:gloo", which names the CPU twice and is refused.
    from verl.utils import distributed

    wanted = functools.partial(distributed.initialize_global_process_group_ray, backend="cpu:gloo")
    distributed.initialize_global_process_group_ray = wanted

    # 2. The training engine is registered for GPUs only, and asks for pinned memory for the reference model.
    from verl.workers.engine.base import EngineRegistry
    from verl.workers.engine.fsdp import transformer_impl

    class CpuEngine(transformer_impl.FSDPEngineWithLMHead):  # type: ignore[misc]
        def _build_fsdp_module(self, module: Any) -> Any:
            pinned = transformer_impl.CPUOffloadPolicy
            transformer_impl.CPUOffloadPolicy = lambda **_: pinned(pin_memory=False)
            try:
                return super()._build_fsdp_module(module)
            finally:
                transformer_impl.CPUOffloadPolicy = pinned

    EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device=platform.NAME)(CpuEngine)


# verl has no function that registers the adapter in the trainer's processes.
base._ROLLOUT_REGISTRY[(CPU_ROLLOUT, "async")] = "coa.rl.engines.verl.cpu.rollout.WeightSender"
replica.RolloutReplicaRegistry.register(CPU_ROLLOUT, _replica)
if os.environ.get("VERL_PLATFORM") == platform.NAME:
    _patch()
