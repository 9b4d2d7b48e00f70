"""What sharded training (FSDP2, DeepSpeed) needs besides what transformers' Trainer and accelerate do by themselves.

accelerate's launcher says in the environment how the processes divide the model; `Sharding.found()` reads it there.

- A process that only accumulates gradients must not keep those of the whole model, so gradients are divided after every
  row, not once in an update (`sync_each_batch`).
- FSDP2 with mixed precision casts what modules get and return to bf16. Ours get the labels' shares of the loss, which
  must not be rounded, and return the loss. All else is bf16 anyway, because the weights are.
- accelerate knows FSDP on accelerators only, and on a CPU it silently takes data parallelism instead. `fsdp_on_cpu`
  makes it take FSDP2, so that the whole path can be tried and tested without a GPU.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import DistributedType
from transformers import Trainer
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from coa.errors import TrainingError
from coa.training.settings import Lora


@dataclass(frozen=True)
class Sharding:
    """How the processes of this run divide the model, as accelerate's launcher says."""

    fsdp: bool
    deepspeed: bool
    checkpoints_activations: bool
    """Whether FSDP recomputes activations itself, so that transformers must not."""
    loads_once: bool
    """Whether only the first process has the model's weights until they are divided."""

    @classmethod
    def found(cls) -> Sharding:
        fsdp = _is_set("ACCELERATE_USE_FSDP")
        return cls(
            fsdp=fsdp,
            deepspeed=_is_set("ACCELERATE_USE_DEEPSPEED"),
            checkpoints_activations=fsdp and _is_set("FSDP_ACTIVATION_CHECKPOINTING"),
            loads_once=fsdp and _is_set("FSDP_CPU_RAM_EFFICIENT_LOADING"),
        )


def _is_set(name: str) -> bool:
    return os.environ.get(name, "").lower() in ("1", "true", "yes")


def refuse_lost_adapters(lora: Lora | None) -> None:
    """peft finds no adapter below FSDP's own checkpointing: checkpoints and the result would silently be without it."""
    if lora is not None and Sharding.found().checkpoints_activations:
        raise TrainingError(
            "fsdp_activation_checkpointing cannot be used with lora: peft would save an empty adapter",
            hint="set it to false in accelerate's config, and train with --set gradient_checkpointing=true",
        )


@contextmanager
def fsdp_on_cpu() -> Iterator[None]:
    """While an `Accelerator` is made: let it take FSDP for processes without an accelerator, too.

    It looks only at processes whose kind it knows to have one. Called so, it then sets the kind to FSDP itself.
    """
    state = PartialState._shared_state
    on_cpu = state.get("distributed_type") == DistributedType.MULTI_CPU and Sharding.found().fsdp
    if on_cpu:
        state["distributed_type"] = DistributedType.MULTI_GPU
    yield
    if on_cpu and state["distributed_type"] != DistributedType.FSDP:
        raise AssertionError("accelerate no longer takes FSDP from the environment")


def keep_loss_exact(accelerator: Accelerator) -> None:
    """Under FSDP2 with mixed precision: modules get and return numbers as they are, and gradients are added in fp32."""
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    policy = getattr(plugin, "mixed_precision_policy", None)
    if plugin is not None and plugin.fsdp_version == 2 and policy is not None:
        plugin.mixed_precision_policy = replace(
            policy, cast_forward_inputs=False, output_dtype=None, reduce_dtype=torch.float32
        )


def save_whole(trainer: Trainer, folder: Path) -> None:
    """Write the weights as an ordinary model folder. All processes take part in gathering them, one writes."""
    if not trainer.is_fsdp_enabled:
        trainer.save_model(str(folder))
        # One process alone reads models from here on, to merge an adapter; transformers would divide them again.
        unset_hf_deepspeed_config()  # type: ignore[no-untyped-call]
        return
    # The Trainer gathers only where checkpoints are gathered too, which for large models they should not be.
    state = trainer.accelerator.get_state_dict(trainer.model)
    if trainer.args.should_save:
        for name in getattr(trainer.accelerator.unwrap_model(trainer.model), "all_tied_weights_keys", ()):
            state.pop(name, None)  # weights of the same name elsewhere, which are written once
        trainer._save(str(folder), state_dict=state)
