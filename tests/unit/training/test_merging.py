"""Checkpoints of any kind as a model folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save
from transformers import AutoModelForCausalLM

from coa.errors import ModelError, TrainingError
from coa.models.local.model import load_weights
from coa.models.tokenizer import load_tokenizer
from coa.training.merging import Kind, kind_of, merge_checkpoint, model_folder
from coa.training.settings import Lora
from coa.training.weights import open_trained
from support.newborn import newborn


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return newborn(tmp_path_factory.mktemp("model") / "random", seed=1)


def parameters(folder: Path) -> dict[str, torch.Tensor]:
    loaded, _ = load_weights(folder, device="cpu")
    return dict(loaded.named_parameters())


def adapter_of(model: Path, folder: Path) -> Path:
    whole, _, tokenizer = open_trained(str(model), Lora(rank=2), dtype=torch.float32, device="cpu")
    with torch.no_grad():
        for name, weight in whole.named_parameters():
            if "lora_B" in name:
                weight.fill_(0.1)
    whole.save_pretrained(folder)  # type: ignore[operator]
    tokenizer.save(folder)
    return folder


def test_an_adapter_is_merged_into_its_base(model: Path, tmp_path: Path) -> None:
    adapter = adapter_of(model, tmp_path / "adapter")
    assert kind_of(adapter) == (Kind.ADAPTER, adapter)
    out = merge_checkpoint(adapter, tmp_path / "merged")
    assert not (out / "adapter_config.json").exists() and (out / "tokenizer.json").is_file()
    before, after = parameters(model), parameters(out)
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[name], after[name]) for name in before), "the adapter changed something"
    assert all(torch.allclose(a, b) for a, b in zip(parameters(adapter).values(), after.values(), strict=True))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_shards_of_fsdp_are_joined(model: Path, tmp_path: Path) -> None:
    weights = AutoModelForCausalLM.from_pretrained(str(model)).state_dict()
    with torch.no_grad():
        changed = {name: weight + 0.5 for name, weight in weights.items()}
    shards = tmp_path / "checkpoint-3" / "pytorch_model_fsdp_0"
    save({"model": changed}, storage_writer=FileSystemWriter(shards))
    with pytest.raises(ModelError, match="not which model") as caught:
        merge_checkpoint(tmp_path / "checkpoint-3", tmp_path / "out")
    assert "--base" in str(caught.value.hint)
    (tmp_path / "config.json").write_text(json.dumps({"config": {"model": str(model)}}))  # a run folder says it
    out = merge_checkpoint(tmp_path / "checkpoint-3", tmp_path / "out")
    for name, weight in parameters(out).items():
        assert torch.equal(weight, changed[name]), name
    assert load_tokenizer(out).fingerprint == load_tokenizer(model).fingerprint


def test_a_folder_with_nothing_to_merge_is_refused_and_nothing_is_overwritten(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="neither an adapter nor a checkpoint"):
        merge_checkpoint(tmp_path, tmp_path / "out")
    with pytest.raises(ModelError, match="there is no folder"):
        merge_checkpoint(tmp_path / "nowhere", tmp_path / "out")
    (tmp_path / "there").mkdir()
    with pytest.raises(ModelError, match="exists already"):
        merge_checkpoint(model, tmp_path / "there")
    merge_checkpoint(model, tmp_path / "there", force=True)
    assert (tmp_path / "there" / "model.safetensors").is_file()


@pytest.mark.parametrize("out", ["", "model", "other"])
def test_force_replaces_nothing_but_another_model(out: str, model: Path, tmp_path: Path) -> None:
    """Not the run that is merged, not the model in it, and not a folder that holds something else."""
    run = tmp_path / "run"
    shutil.copytree(model, run / "model")
    (run / "notes.txt").write_text("mine")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    place = tmp_path / "other" if out == "other" else run / out
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ModelError, match=r"holds what is to be merged|is not a model folder"):
        merge_checkpoint(run, place, force=True)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_damaged_checkpoint_of_fsdp_is_named(model: Path, tmp_path: Path) -> None:
    shards = tmp_path / "pytorch_model_fsdp_0"
    shards.mkdir()
    (shards / ".metadata").write_bytes(b"torn")
    with pytest.raises(ModelError, match="is damaged"):
        merge_checkpoint(tmp_path, tmp_path / "out", base=model)


def test_a_checkpoint_of_verl_without_verl_names_the_package(tmp_path: Path) -> None:
    (tmp_path / "actor").mkdir()
    (tmp_path / "actor" / "model_world_size_1_rank_0.pt").touch()
    with pytest.raises(TrainingError):
        merge_checkpoint(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_run_folder_stands_for_its_newest_checkpoint(tmp_path: Path) -> None:
    checkpoints = tmp_path / "verl" / "checkpoints"
    actor = checkpoints / "global_step_4" / "actor"
    actor.mkdir(parents=True)
    (actor / "model_world_size_2_rank_0.pt").touch()
    (checkpoints / "latest_checkpointed_iteration.txt").write_text("4")
    assert kind_of(tmp_path) == (Kind.VERL, actor)


def test_engines_that_need_whole_weights_get_an_adapter_merged(model: Path, tmp_path: Path) -> None:
    assert model_folder(model, tmp_path / "unused") == model.resolve()
    folder = model_folder(adapter_of(model, tmp_path / "adapter"), tmp_path / "merged")
    assert folder == (tmp_path / "merged").resolve() and (folder / "tokenizer.json").is_file()
