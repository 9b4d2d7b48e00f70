"""A run that is killed and started again ends with the very weights of one that was left alone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from coa.errors import FolderError, TrainingError
from coa.models.local.model import load_weights
from coa.progress import PrintProgress
from coa.sft.config import SftConfig
from coa.sft.data import asked, held_out_questions
from coa.sft.train import train
from coa.trajectory import Step, write
from support.words import copying, word_model

STARTED = """
import sys
from pathlib import Path
from coa.sft.config import SftConfig
from coa.sft.train import train
train(SftConfig.model_validate_json(sys.argv[1]), Path(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("base")
    write(folder / "data.jsonl", copying(64))
    return {
        "model": str(word_model(folder / "random")),
        "data": [str(folder / "data.jsonl")],
        "lr": 1e-3,
        "max_steps": 14,
        "batch_size": 8,
        "max_length": 64,
        "held_out": 6,
        "eval_steps": 5,
        "save_steps": 3,
        "report_to": [],
        "precision": "fp32",  # the process that is killed would find the CPU's units for bf16
    }


def losses(run: Path) -> list[tuple[int, float]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row.get("loss", row.get("held_out_loss"))) for row in rows]


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model" / "model.safetensors")


@pytest.mark.parametrize("extra", [{}, {"lora": {"rank": 4, "dropout": 0.2}}], ids=["full", "lora"])
def test_killed_and_resumed_equals_uninterrupted_bit_for_bit(
    base: dict[str, Any], extra: dict[str, Any], tmp_path: Path
) -> None:
    config = SftConfig.model_validate({**base, **extra})
    train(config, tmp_path / "whole")

    run = tmp_path / "killed"
    process = subprocess.Popen(
        [sys.executable, "-c", STARTED, config.model_dump_json(), str(run)], stdout=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while not (run / "checkpoint-6" / "complete").is_file() and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    (run / "checkpoint-999").mkdir()  # as a kill in the middle of saving leaves one
    assert not (run / "model").exists()

    said: list[str] = []
    train(config, run, progress=PrintProgress(said.append))
    assert any("going on after update" in line for line in said)
    assert not (run / "checkpoint-999").exists()
    whole, resumed = weights(tmp_path / "whole"), weights(run)
    assert whole.keys() == resumed.keys() and all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert losses(run) == losses(tmp_path / "whole")


def test_a_finished_run_is_not_run_again_and_another_config_is_refused(base: dict[str, Any], tmp_path: Path) -> None:
    config = SftConfig.model_validate({**base, "max_steps": 2, "held_out": 0})
    result = train(config, tmp_path / "run")
    stamp = (result.folder / "model.safetensors").stat().st_mtime_ns
    said: list[str] = []
    train(config, tmp_path / "run", progress=PrintProgress(said.append))
    assert "finished already" in said[-1] and (result.folder / "model.safetensors").stat().st_mtime_ns == stamp
    with pytest.raises(FolderError, match=r"lr was 0\.001 and is now 0\.5"):
        train(config.model_copy(update={"lr": 0.5}), tmp_path / "run")
    with pytest.raises(FolderError, match="another kind of run"):
        train(config, Path(base["model"]))
    with pytest.raises(FolderError, match="is not empty"):
        train(config, Path(base["model"]).parent)
    write(tmp_path / "more.jsonl", copying(3))
    other = config.model_copy(update={"data": (str(tmp_path / "more.jsonl"),)})
    with pytest.raises(FolderError, match="other settings: data"):
        train(other, tmp_path / "run")


def test_a_run_that_was_refused_at_its_start_may_be_corrected(base: dict[str, Any], tmp_path: Path) -> None:
    config = SftConfig.model_validate({**base, "max_steps": 1, "held_out": 0})
    with pytest.raises(TrainingError, match="no token to train on"):
        train(config.model_copy(update={"max_length": 16}), tmp_path / "run")
    assert train(config, tmp_path / "run").finished
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "config.json").write_text("{torn")
    with pytest.raises(FolderError, match="another kind of run"):
        train(config, damaged)


def test_what_would_fail_in_the_middle_of_a_run_is_refused_at_its_start(base: dict[str, Any], tmp_path: Path) -> None:
    later = {"length_schedule": [{"max_length": 64, "epochs": 1.0}, {"max_length": 16, "epochs": 1.0}]}
    with pytest.raises(TrainingError, match="no token to train on"):
        train(SftConfig.model_validate({**base, **later, "held_out": 0}), tmp_path / "a")
    rows = copying(64)
    held = held_out_questions(rows, 6, 0)
    long = [
        t.model_copy(update={"steps": (Step(agent="think", text="on " * 99), *t.steps)}) if asked(t.task) in held else t
        for t in rows
    ]
    write(tmp_path / "long.jsonl", long)
    with pytest.raises(TrainingError, match="none of the 6 held-out"):
        config = SftConfig.model_validate(
            {**base, "data": [str(tmp_path / "long.jsonl")], "early_stopping_patience": 1}
        )
        train(config, tmp_path / "b")


def test_ctrl_c_saves_and_the_same_call_goes_on(base: dict[str, Any], tmp_path: Path) -> None:
    config = SftConfig.model_validate({**base, "held_out": 0, "save_steps": 100})

    def interrupt(line: str) -> None:
        if line.startswith("step 4/"):
            os.kill(os.getpid(), signal.SIGINT)

    stopped = train(config, tmp_path / "run", progress=PrintProgress(interrupt))
    assert not stopped.finished and stopped.steps == 5
    result = train(config, tmp_path / "run")
    assert result.finished and result.steps == 14
    train(config, tmp_path / "whole")
    whole, resumed = weights(tmp_path / "whole"), weights(tmp_path / "run")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_training_stops_early_and_takes_the_best(base: dict[str, Any], tmp_path: Path) -> None:
    """A rate so high that the held-out loss rises at once."""
    config = SftConfig.model_validate(
        {
            **base,
            "lr": 30.0,
            "warmup_ratio": 0.0,
            "max_steps": 30,
            "eval_steps": 2,
            "early_stopping_patience": 2,
            "max_grad_norm": 0.0,
        }
    )
    result = train(config, tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    looks = {row["step"]: row["held_out_loss"] for row in rows if "held_out_loss" in row}
    assert result.finished and result.steps == 4 and min(looks.values()) == looks.pop(0)
    best = load_file(tmp_path / "run" / f"checkpoint-{min(looks, key=looks.__getitem__)}" / "model.safetensors")
    assert all(torch.equal(best[name], tensor) for name, tensor in weights(tmp_path / "run").items())
    taken = f"update {min(looks, key=looks.__getitem__)}, held-out loss {min(looks.values()):.4f}"
    assert result.figures["taken"] == taken and taken in (result.folder / "README.md").read_text()
    # Killed after its early end, before the model was written: nothing is left to train.
    shutil.rmtree(result.folder)
    assert train(config, tmp_path / "run").finished
    assert [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()] == rows
    assert all(torch.equal(best[name], tensor) for name, tensor in weights(tmp_path / "run").items())


def test_an_adapter_alone_is_loaded_over_its_base_and_equals_the_merged_one(
    base: dict[str, Any], tmp_path: Path
) -> None:
    for name, merge in (("merged", True), ("adapter", False)):
        lora = {"rank": 4, "use_dora": True, "merge": merge}
        train(SftConfig.model_validate({**base, "lora": lora, "max_steps": 3}), tmp_path / name)
    assert not (tmp_path / "adapter" / "model" / "model.safetensors").exists()
    one, one_tokenizer = load_weights(tmp_path / "merged")
    other, other_tokenizer = load_weights(tmp_path / "adapter")
    ids = torch.arange(20)[None]
    assert one_tokenizer.fingerprint == other_tokenizer.fingerprint
    assert torch.allclose(one(input_ids=ids).logits, other(input_ids=ids).logits, atol=1e-5)


def test_an_adapter_is_trained_further_and_still_belongs_to_the_first_base(
    base: dict[str, Any], tmp_path: Path
) -> None:
    kept = {"rank": 4, "merge": False}
    train(SftConfig.model_validate({**base, "lora": kept, "max_steps": 2}), tmp_path / "first")
    further = {**base, "model": str(tmp_path / "first"), "max_steps": 2}
    for name, merge in (("merged", True), ("adapter", False)):
        lora = {"rank": 64, "merge": merge}  # the adapter's own rank counts
        train(SftConfig.model_validate({**further, "lora": lora}), tmp_path / name)
    about = json.loads((tmp_path / "adapter" / "model" / "adapter_config.json").read_text())
    assert (about["base_model_name_or_path"], about["r"]) == (base["model"], 4)
    ids = torch.arange(20)[None]
    first, one, other = (
        load_weights(tmp_path / name)[0](input_ids=ids).logits for name in ("first", "merged", "adapter")
    )
    assert torch.allclose(one, other, atol=1e-5) and not torch.allclose(first, one, atol=1e-3)
