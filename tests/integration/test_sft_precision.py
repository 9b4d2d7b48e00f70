"""Fine-tuning in bf16 on a CPU, with the check for its units faked: close to fp32, and only where it is wanted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from coa.choices import Precision
from coa.models import precision
from coa.sft.config import SftConfig
from coa.sft.train import train
from coa.trajectory import write
from support.words import copying, word_model


def losses(config: SftConfig, out: Path) -> tuple[list[float], str]:
    train(config, out)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    kinds = {str(weight.dtype) for weight in load_file(out / "model" / "model.safetensors").values()}
    return [row["loss"] for row in rows if "loss" in row], "".join(kinds)


def test_a_cpu_with_units_trains_in_bf16_unless_it_is_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "data.jsonl", copying(32))
    config = SftConfig.model_validate(
        {
            "model": str(word_model(tmp_path / "random")), "data": [str(tmp_path / "data.jsonl")], "lr": 1e-3,
            "max_steps": 3, "batch_size": 8, "max_length": 64, "report_to": [],
        }
    )  # fmt: skip
    exact, kind = losses(config, tmp_path / "without")
    assert kind == "torch.float32"
    monkeypatch.setattr(precision, "cpu_has_bf16", lambda: True)
    rounded, kind = losses(config, tmp_path / "with")
    assert kind == "torch.bfloat16"
    assert rounded != exact and rounded == pytest.approx(exact, rel=5e-3)
    overridden = config.model_copy(update={"precision": Precision.FP32})
    assert losses(overridden, tmp_path / "overridden") == (exact, "torch.float32")
