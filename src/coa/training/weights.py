"""Weights in and out of training: which weights of a model are trained, and the folder that is written."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from coa.errors import ModelError
from coa.folder import put
from coa.models.local.model import base_of_adapter, is_adapter, load_weights, with_adapter
from coa.models.tokenizer import TextTokenizer, load_tokenizer, result_folder
from coa.training.memory import give_back_large_blocks
from coa.training.settings import Lora

if TYPE_CHECKING:
    from peft import PeftModel


def frozen_dtype(bf16: bool, lora: Lora | None) -> torch.dtype:
    """Under an adapter the model's weights do not change and may be bf16; weights that are trained need fp32."""
    return torch.bfloat16 if lora is not None and bf16 else torch.float32


def freeze_embeddings(model: PreTrainedModel) -> None:
    for part in (model.get_input_embeddings(), model.get_output_embeddings()):  # type: ignore[no-untyped-call]
        if part is not None:
            part.requires_grad_(False)


def open_trained(
    source: str, lora: Lora | None, *, dtype: torch.dtype, device: str
) -> tuple[torch.nn.Module, PreTrainedModel, TextTokenizer]:
    """The module to train, the model in it (the same without an adapter), and the tokenizer.

    With `lora` a model gets an adapter; if the source is an adapter, that one is trained further, as it is.
    """
    give_back_large_blocks()
    if lora is None or not is_adapter(source):
        model, tokenizer = load_weights(source, dtype=dtype, device=device)
        folder = Path(result_folder(source))
        base = str(folder.resolve()) if folder.is_dir() else source  # holds from any folder, and for other programs
        return model if lora is None else _add_lora(model, base, lora), model, tokenizer
    adapter = Path(result_folder(source))
    model, _ = load_weights(base_of_adapter(adapter), dtype=dtype, device=device)
    return with_adapter(model, adapter, trainable=True), model, load_tokenizer(adapter)


def _add_lora(model: PreTrainedModel, base: str, lora: Lora) -> PeftModel:
    """An adapter over a frozen model; `base` is the name under which its weights can be loaded again."""
    from peft import LoraConfig, get_peft_model

    settings = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=lora.target_modules,
        use_dora=lora.use_dora,
        task_type="CAUSAL_LM",
        base_model_name_or_path=base,
    )
    try:
        return get_peft_model(model, settings)
    except ValueError as error:
        raise ModelError(f"no adapter fits this model: {error}", hint="--set lora.target_modules=all-linear") from error


def base_of(model: torch.nn.Module) -> PreTrainedModel:
    """The model under an adapter, or the model itself."""
    inner = getattr(model, "get_base_model", None)
    found = inner() if inner is not None else model
    assert isinstance(found, PreTrainedModel)
    return found


def merge(source: str | Path, adapter: Path, out: Path, dtype: torch.dtype) -> None:
    """Merge an adapter into the weights it was trained on, save the whole model, and remove the adapter."""
    base = base_of_adapter(Path(result_folder(source))) if is_adapter(source) else source
    model, _ = load_weights(base, dtype=dtype, device="cpu")
    with_adapter(model, adapter).merge_and_unload().save_pretrained(out)
    shutil.rmtree(adapter, ignore_errors=True)


def narrow(source: Path, dtype: torch.dtype) -> None:
    """Save a model folder again in a narrower type, as it is served in."""
    model = AutoModelForCausalLM.from_pretrained(str(source), dtype=dtype)
    model.save_pretrained(source)


def publish(part: Path, out: Path, tokenizer: TextTokenizer, card: str) -> None:
    """Make the folder complete and put it in its place at once."""
    tokenizer.save(part)
    (part / "README.md").write_text(card, encoding="utf-8")
    (part / "training_args.bin").unlink(missing_ok=True)  # a pickle of this process, of no use to others
    put(part, out)
