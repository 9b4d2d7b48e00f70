"""Fine-tuning by processes that `coa sft --launch` starts on a CPU, beside the same by one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from coa.choices import Device, Precision, Sharding
from coa.errors import TrainingError
from coa.sft.config import SftConfig
from coa.sft.launch import Launch, start
from coa.trajectory import write
from support.words import copying

KILLED_AFTER_STEP_3 = """
import os, signal, sys
from pathlib import Path
import coa
from coa.progress import PrintProgress

def say(line):
    if line.startswith("step 3/"):
        os.kill(os.getpid(), signal.SIGKILL)

coa.sft(coa.SftConfig.model_validate_json(Path(sys.argv[1]).read_text()), sys.argv[2], progress=PrintProgress(say))
"""


def recipe(tmp_path: Path, **settings: Any) -> SftConfig:
    write(tmp_path / "data.jsonl", copying(40))
    return SftConfig(
        model=str(tmp_path / "random"), data=(str(tmp_path / "data.jsonl"),), lr=1e-3, max_steps=4, batch_size=8,
        max_length=64, held_out=6, eval_steps=2, save_steps=2, report_to=(),
        precision=Precision.FP32, **settings,  # processes of their own would find the CPU's units for bf16
    )  # fmt: skip


def killed_after_step_3(config: SftConfig, out: Path, sharding: Sharding = Sharding.FSDP2) -> None:
    """Two processes, of which the first is killed before its last checkpoint."""
    (out.parent / "killed.py").write_text(KILLED_AFTER_STEP_3)
    (out.parent / "settings.json").write_text(config.model_dump_json())
    program = [str(out.parent / "killed.py"), str(out.parent / "settings.json"), str(out)]
    with pytest.raises(TrainingError, match="exit code"):
        start(Launch(device=Device.CPU, gpus_per_node=2, sharding=sharding), config, program)
    assert (out / "checkpoint-2" / "complete").is_file() and not (out / "model").exists()


def launched(config: SftConfig, out: Path, sharding: Sharding = Sharding.FSDP2) -> None:
    """Two processes, started on the command line."""
    given = config.model_dump(mode="json", exclude_defaults=True, exclude={"data", "report_to"})
    settings = [word for name, value in given.items() for word in ("--set", f"{name}={toml(value)}")]
    words = ["-m", "coa.cli", "sft", "--data", config.data[0], *settings, "--set", "report_to=[]"]
    done = subprocess.run(
        [sys.executable, *words, "--launch", "--device", "cpu", "--sharding", sharding, "--out", str(out)],
        capture_output=True,
        text=True,
        timeout=900,
        env=os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("ask it:") == 1  # one of them speaks


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {toml(item)}" for name, item in value.items()) + "}"
    return json.dumps(value)


def losses(out: Path) -> list[float]:
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [row.get("loss", row.get("held_out_loss")) for row in rows]


def same_model(one: Path, two: Path) -> None:
    first, second = (load_file(out / "model" / "model.safetensors") for out in (one, two))
    assert first.keys() == second.keys()
    assert all(torch.allclose(first[name], second[name], atol=1e-5) for name in first)
    assert losses(two) == pytest.approx(losses(one), abs=1e-5)
