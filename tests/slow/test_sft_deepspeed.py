"""The same under DeepSpeed's ZeRO-3, which compiles a part of itself when it first runs on a CPU: minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from coa.choices import Sharding
from coa.sft.train import train
from support.launching import killed_after_step_3, launched, recipe, same_model
from support.words import word_model

pytest.importorskip("deepspeed", reason="pip install deepspeed in an environment of its own")


def test_zero_3_trains_what_one_process_trains_also_after_a_kill(tmp_path: Path) -> None:
    word_model(tmp_path / "random")
    config = recipe(tmp_path, gradient_checkpointing=True)
    train(config, tmp_path / "one")
    killed_after_step_3(config, tmp_path / "two", Sharding.DEEPSPEED)
    assert len(list((tmp_path / "two" / "checkpoint-2").glob("global_step*/zero_*_optim_states.pt"))) == 2
    launched(config, tmp_path / "two", Sharding.DEEPSPEED)
    same_model(tmp_path / "one", tmp_path / "two")


def test_two_processes_that_share_each_row_train_the_adapter_of_one(tmp_path: Path) -> None:
    word_model(tmp_path / "random", key_heads=1)
    config = recipe(tmp_path, lora={"rank": 4})
    train(config, tmp_path / "one")
    launched(config.model_copy(update={"sequence_parallel_size": 2}), tmp_path / "two", Sharding.DEEPSPEED)
    same_model(tmp_path / "one", tmp_path / "two")
