"""Weights in and out of training: what is trained of a model, and the folder that comes out of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from coa.errors import ModelError
from coa.models.local.model import load_weights
from coa.models.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from peft import PeftModel


def freeze_embeddings(model: PreTrainedModel) -> None:
    for part in (model.get_input_embeddings(), model.get_output_embeddings()):  # type: ignore[no-untyped-call]
        if part is not None:
            part.requires_grad_(False)


def add_lora(
    model: PreTrainedModel, *, base: str, rank: int, alpha: int, dropout: float, targets: str, dora: bool
) -> PeftModel:
    """An adapter over a frozen model; `base` is the name under which its weights can be loaded again."""
    from peft import LoraConfig, get_peft_model

    settings = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        target_modules=targets,
        use_dora=dora,
        task_type="CAUSAL_LM",
        base_model_name_or_path=base,
    )
    try:
        return get_peft_model(model, settings)
    except ValueError as error:
        raise ModelError(f"no adapter fits this model: {error}", cure="--set lora.targets=all-linear") from error


def base_of(model: torch.nn.Module) -> PreTrainedModel:
    """The model under an adapter, or the model itself."""
    inner = getattr(model, "get_base_model", None)
    found = inner() if inner is not None else model
    assert isinstance(found, PreTrainedModel)
    return found


def merge(source: str | Path, adapter: Path, out: Path, dtype: torch.dtype) -> None:
    """Fold an adapter into the weights it was trained on, and save the whole."""
    from peft import PeftModel

    model, _ = load_weights(source, dtype=dtype, device="cpu")
    PeftModel.from_pretrained(model, str(adapter)).merge_and_unload().save_pretrained(out)


def narrow(source: Path, dtype: torch.dtype) -> None:
    """Save a model folder again in a narrower type, as it is served in."""
    model = AutoModelForCausalLM.from_pretrained(str(source), dtype=dtype)
    model.save_pretrained(source)


def publish(part: Path, out: Path, tokenizer: TextTokenizer, card: str) -> None:
    """Make the folder complete and put it in its place at once."""
    tokenizer.save(part)
    (part / "README.md").write_text(card, encoding="utf-8")
    (part / "training_args.bin").unlink(missing_ok=True)  # a pickle of this process, of no use to others
    shutil.rmtree(out, ignore_errors=True)
    part.rename(out)


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
