"""Checkpoints of any kind as an ordinary Hugging Face folder: LoRA adapters, FSDP shards, checkpoints of verl."""

from __future__ import annotations

import shutil
import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from typing import Final

import orjson

from coa.errors import ModelError, TrainingError
from coa.folder import put, replacing
from coa.models.local.model import TAG, is_adapter, load_weights
from coa.models.places import weights_place
from coa.models.tokenizer import SMOLLM2, load_tokenizer, result_folder
from coa.training import checkpoint

DCP: Final = ".metadata"
"""The file that torch's distributed checkpoints have in their folder."""
FSDP: Final = "pytorch_model_fsdp_0"
"""The folder into which accelerate writes the shards of a model under FSDP."""


class Kind(StrEnum):
    """What a folder holds."""

    ADAPTER = "a LoRA adapter"
    VERL = "a checkpoint of verl"
    FSDP = "a sharded checkpoint of FSDP"
    MODEL = "a whole model"


def kind_of(source: Path) -> tuple[Kind, Path]:
    """What a folder holds, and where in it: a run folder is searched for its newest checkpoint."""
    for folder in _places(source):
        if (folder / "adapter_config.json").is_file():
            return Kind.ADAPTER, folder
        if any(folder.glob("model_world_size_*_rank_*.pt")):
            return Kind.VERL, folder
        if (folder / DCP).is_file():
            return Kind.FSDP, folder
        if (folder / "config.json").is_file() and any(folder.glob("*.safetensors")):
            return Kind.MODEL, folder
    raise ModelError(
        f"{source} holds neither an adapter nor a checkpoint",
        hint="give the folder of a run, its model/ folder, or a checkpoint folder in it",
    )


def _places(source: Path) -> list[Path]:
    found = [source, source / "model", source / "actor", source / FSDP]
    tracker = source / "verl" / "checkpoints" / "latest_checkpointed_iteration.txt"
    if tracker.is_file():
        found.append(tracker.parent / f"global_step_{tracker.read_text().strip()}" / "actor")
    if (last := checkpoint.latest(source)) is not None:
        found += [last, last / FSDP]
    return found


def merge_checkpoint(
    source: str | Path, out: Path, *, card: str | None = None, tokenizer: str | Path | None = None,
    base: str | Path | None = None, force: bool = False,
) -> Path:  # fmt: skip
    """Write a checkpoint as a model folder that coa, transformers, vLLM and SGLang can load.

    It merges LoRA adapters, FSDP shards and checkpoints of verl. The folder appears only when it is complete.

    Args:
        source: The checkpoint or run folder.
        out: The folder to write.
        card: Text of the model card.
        tokenizer: The model whose tokenizer belongs to the weights, if the checkpoint has none.
        base: The model whose configuration belongs to FSDP shards, if no run folder around them names it.
        force: Replace an existing folder.

    Returns:
        The folder.

    Raises:
        CoaError: The source is not a checkpoint that can be merged, or `out` exists and `force` is not set.
    """
    if out.exists() and not force:
        raise ModelError(f"{out} exists already", hint="choose another folder, or add --force")
    if not Path(source).is_dir():
        raise ModelError(f"there is no folder {source}", hint="give the folder of a run, an adapter or a checkpoint")
    kind, folder = kind_of(Path(source))
    _refuse_to_replace(out, Path(source), folder)
    part_folder = out.with_name(f".{out.name}.part")
    shutil.rmtree(part_folder, ignore_errors=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    with checkpoint.saving("the model", out.parent):
        if kind is Kind.ADAPTER:
            _merge_adapter(folder, part_folder)
        elif kind is Kind.VERL:
            _merge_verl(folder, part_folder)
        elif kind is Kind.FSDP:
            _merge_fsdp(folder, part_folder, base)
        else:
            shutil.copytree(folder, part_folder)
        load_tokenizer(str(tokenizer or (folder if kind in (Kind.ADAPTER, Kind.MODEL) else part_folder))).save(
            part_folder
        )
        text = card or f"---\ntags: [{TAG}]\n---\n\n# {out.name}\n\nMerged from {kind.value} with `coa export`.\n"
        (part_folder / "README.md").write_text(text, encoding="utf-8")
        put(part_folder, out)
    return out


def _refuse_to_replace(out: Path, *sources: Path) -> None:
    """Only a model folder may be replaced, and never one that holds what is merged."""
    place = out.resolve()
    if any(place == source.resolve() or place in source.resolve().parents for source in sources):
        raise ModelError(f"{out} holds what is to be merged", hint="choose another folder with --out")
    is_model = (out / "config.json").is_file() and any(out.glob("*.safetensors"))
    if out.exists() and not is_model and not (out.is_dir() and not any(out.iterdir())):
        raise ModelError(f"{out} is not a model folder, so it is not replaced", hint="choose another folder with --out")


def _merge_adapter(folder: str | Path, out: Path) -> None:
    model, _ = load_weights(folder, device="cpu")
    model.save_pretrained(out)


def _merge_verl(folder: Path, out: Path) -> None:
    """verl's own merger, in a process of its own: it knows how its shards were made."""
    command = [sys.executable, "-m", "verl.model_merger", "merge", "--backend", "fsdp"]
    done = subprocess.run(
        [*command, "--local_dir", str(folder), "--target_dir", str(out)], capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return
    last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
    if "No module named 'verl" in done.stderr:
        hint = f"{sys.executable} -m pip install 'chain-of-agents[verl,train]', with Python 3.12 or earlier"
        raise TrainingError("merging a checkpoint of verl needs verl", hint=hint)
    raise TrainingError(
        f"verl could not merge {folder}: {' '.join(last)}", hint="train on, or merge another checkpoint"
    )


def _merge_fsdp(folder: Path, out: Path, base: str | Path | None) -> None:
    """Shards of torch's distributed checkpoints, as accelerate writes them."""
    import torch
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
    from transformers import AutoConfig, AutoModelForCausalLM

    base = base or _model_of_run(folder)
    if base is None:
        raise ModelError(f"{folder} holds shards of weights, but not which model they are of", hint="add --base MODEL")
    if is_adapter(base):
        raise ModelError(f"{base} is an adapter; shards of FSDP are of a whole model", hint="name the model under it")
    out.mkdir()
    whole = out / "weights.pt"
    try:
        dcp_to_torch_save(folder, whole)
    except (CheckpointException, OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelError(f"the checkpoint {folder} is damaged: {reason}", hint="merge an earlier one") from error
    weights = torch.load(whole, map_location="cpu", weights_only=True)
    whole.unlink()
    weights = weights.get("model", weights)
    with torch.device("meta"):
        config = AutoConfig.from_pretrained(str(weights_place(result_folder(base))))
        model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    _, unexpected = model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    absent = [name for name, weight in model.named_parameters() if weight.is_meta]
    if unexpected or absent:
        odd = [*unexpected, *absent][0]
        raise ModelError(f"{folder} is not of the model {base}: {odd}", hint="name the right model with --base")
    model.save_pretrained(out)
    load_tokenizer(str(base)).save(out)


def _model_of_run(folder: Path) -> str | None:
    """The model that the run around a checkpoint has trained."""
    for parent in folder.parents[:3]:
        try:
            found = orjson.loads((parent / "config.json").read_bytes())["config"]["model"]
        except (OSError, KeyError, TypeError, orjson.JSONDecodeError):
            continue
        return str(found)
    return None


def model_folder(source: str | Path, merged: Path) -> Path:
    """A folder with weights and tokenizer of a model by any of its names. Hub models are fetched; `smollm2` is unpacked
    and an adapter is merged into the folder `merged`."""
    found = result_folder(source)
    if str(found) != SMOLLM2 and not is_adapter(found):
        return Path(weights_place(str(found))).resolve()
    if not merged.is_dir():
        with replacing(merged) as part:
            _merge_adapter(found, part)
            load_tokenizer(found).save(part)
    return merged.resolve()
