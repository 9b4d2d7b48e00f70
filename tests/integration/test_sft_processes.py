"""Several processes train what one does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from coa.choices import Precision
from coa.sft.config import SftConfig
from coa.sft.train import train
from coa.trajectory import write
from support.words import copying, word_model


def test_two_processes_end_with_the_weights_of_one(tmp_path: Path) -> None:
    """Rows are shared out, gradients meet; sums in another order are the only difference."""
    write(tmp_path / "data.jsonl", copying(40))
    word_model(tmp_path / "random")
    config = SftConfig(
        model=str(tmp_path / "random"),
        data=(str(tmp_path / "data.jsonl"),),
        lr=1e-3,
        max_steps=4,
        batch_size=8,
        max_length=64,
        held_out=6,
        eval_steps=2,
        save_steps=3,
        report_to=(),
        precision=Precision.FP32,  # the other processes would find the CPU's units for bf16
    )
    train(config, tmp_path / "one")
    settings = config.model_dump(mode="json", exclude_defaults=True, exclude={"model", "data", "report_to"})
    (tmp_path / "recipe.toml").write_text(
        "report_to = []\n" + "\n".join(f"{k} = {json.dumps(v)}" for k, v in settings.items())
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "coa.cli"]
    command += ["sft", str(tmp_path / "recipe.toml"), "--model", config.model, "--data", config.data[0]]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "two")],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("ask it:") == 1  # one of them speaks
    one, two = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("one", "two"))
    assert all(torch.allclose(one[name], two[name], atol=1e-5) for name in one)
