"""What sharded training needs besides what accelerate does."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate.utils import FullyShardedDataParallelPlugin

from coa.sft.config import SftConfig
from coa.sft.sharding import Sharding, keep_loss_exact
from coa.sft.trainer import arguments
from coa.sft.updates import UpdatePlan
from coa.training.packing import TokenSample


def test_fsdp2_rounds_neither_the_labels_shares_nor_the_loss() -> None:
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
    plugin.set_mixed_precision("bf16")
    assert plugin.mixed_precision_policy.output_dtype is torch.bfloat16, "what accelerate does by itself"
    keep_loss_exact(SimpleNamespace(state=SimpleNamespace(fsdp_plugin=plugin)))
    policy = plugin.mixed_precision_policy
    assert (policy.param_dtype, policy.reduce_dtype) == (torch.bfloat16, torch.float32)
    assert policy.output_dtype is None and not policy.cast_forward_inputs
    keep_loss_exact(SimpleNamespace(state=SimpleNamespace()))  # one process


def test_fsdp_divides_gradients_after_every_row_and_recomputes_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = SftConfig(model="m", batch_size=2, max_steps=1, max_length=64, gradient_checkpointing=True, report_to=())
    rows = UpdatePlan([[TokenSample(torch.arange(8), torch.ones(8)) for _ in range(4)]], config)

    def found() -> tuple[bool, bool]:
        args: Any = arguments(config, tmp_path, rows, looks=0, bf16=False, resumed=False)
        return args.accelerator_config.gradient_accumulation_kwargs["sync_each_batch"], args.gradient_checkpointing

    assert found() == (False, True) and Sharding.found() == Sharding(False, False, False, False)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    assert found() == (True, True)
    monkeypatch.setenv("FSDP_ACTIVATION_CHECKPOINTING", "true")
    assert found() == (True, False)  # FSDP does it
