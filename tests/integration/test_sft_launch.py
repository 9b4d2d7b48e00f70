"""Two processes that `coa sft --launch` starts end with the weights of one, under FSDP2 on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from coa.sft.train import train
from support.launching import killed_after_step_3, launched, recipe, same_model
from support.words import word_model


def test_fsdp2_trains_what_one_process_trains_also_after_a_kill(tmp_path: Path) -> None:
    word_model(tmp_path / "random")
    config = recipe(tmp_path, gradient_checkpointing=True)
    train(config, tmp_path / "one")

    killed_after_step_3(config, tmp_path / "two")
    # Shards, which only FSDP writes: accelerate alone would have taken data parallelism on a CPU.
    assert len(list((tmp_path / "two" / "checkpoint-2" / "pytorch_model_fsdp_0").glob("*.distcp"))) == 2

    launched(config, tmp_path / "two")
    same_model(tmp_path / "one", tmp_path / "two")
    assert isinstance(AutoModelForCausalLM.from_pretrained(tmp_path / "two" / "model"), LlamaForCausalLM)
    assert "--launch" in (tmp_path / "two" / "model" / "README.md").read_text()


@pytest.mark.slow
def test_two_processes_that_share_each_row_train_the_adapter_of_one(tmp_path: Path) -> None:
    """With one key head, which both of them need."""
    word_model(tmp_path / "random", key_heads=1)
    config = recipe(tmp_path, lora={"rank": 4})
    train(config, tmp_path / "one")
    launched(config.model_copy(update={"sequence_parallel_size": 2}), tmp_path / "two")
    same_model(tmp_path / "one", tmp_path / "two")
    untrained = load_file(tmp_path / "random" / "model.safetensors")
    trained = load_file(tmp_path / "two" / "model" / "model.safetensors")
    assert any(not torch.equal(untrained[name], trained[name]) for name in untrained), "the adapter is in it"
