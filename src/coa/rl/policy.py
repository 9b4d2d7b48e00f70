"""The model in training: one set of weights that samples, is trained, and is saved.

The engine and the trainer go through the same modules; which attention they mean follows from what they pass along.
What the engine keeps besides, contexts and packed weights, is dropped before updates and made anew after them. A copy
of what is trained is there only where it samples ahead.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

from coa.errors import TrainingError
from coa.models.local import LocalModel
from coa.models.local import slots as engine
from coa.models.local.layout import lay_out_by_rows
from coa.models.local.model import is_adapter, load_weights
from coa.models.tokenizer import TextTokenizer
from coa.rl.config import RlConfig
from coa.training import attention as rows
from coa.training import policy, weights

NAME: Final = "coa_engine_and_rows"


def attend(*args: Any, coa_step: engine.Step | None = None, **rest: Any) -> tuple[Tensor, None]:
    """The engine's attention for a step of the engine's, else that of rows."""
    if coa_step is not None:
        return engine.attend(*args, coa_step=coa_step, **rest)
    return rows.attend(*args, **rest)


AttentionInterface.register(NAME, attend)


@dataclass(frozen=True)
class Policy:
    whole: torch.nn.Module
    """With its adapter, if it has one."""
    inner: PreTrainedModel
    tokenizer: TextTokenizer
    sampler: LocalModel
    reference: PreTrainedModel | None
    """The model at the start, where the distance to it counts and no adapter could be switched off instead."""
    apart: PreTrainedModel | None = None
    """What the engine samples from while the policy is trained: a copy of what is trained, the rest being the same."""

    @property
    def trained(self) -> dict[str, torch.nn.Parameter]:
        return {name: weight for name, weight in self.whole.named_parameters() if weight.requires_grad}

    @property
    def drops(self) -> bool:
        """Whether an update leaves out activations at random, as an adapter may that came with the model."""
        if getattr(self.inner.config, "attention_dropout", 0):
            return True
        return any(isinstance(part, torch.nn.Dropout) and part.p > 0 for part in self.whole.modules())

    def save_weights(self, path: Path) -> None:
        save_file({name: weight.detach().contiguous() for name, weight in self.trained.items()}, path)

    @torch.no_grad()
    def load_weights(self, path: Path) -> None:
        saved = load_file(path)
        for name, weight in self.trained.items():
            weight.copy_(saved[name])  # in place, laid out as the engine likes it
        self.sampler.forget()

    def forget(self) -> None:
        """The weights have changed, or will: what the engine keeps of them and of contexts goes, and its memory too."""
        if self.apart is None:
            self.sampler.forget()

    @torch.no_grad()
    def renew(self) -> None:
        """From now on the engine samples from the policy as it is. Only while no attempt is under way."""
        if self.apart is not None:
            for own, new in zip(self.apart.parameters(), self.inner.parameters(), strict=True):
                if own is not new:
                    own.copy_(new)
        self.sampler.forget()

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Dropout and checkpointing of gradients are for updates only."""
        self.whole.train(True)
        try:
            yield
        finally:
            self.whole.train(False)

    @contextmanager
    def still(self) -> Iterator[None]:
        """Within an update: as it samples."""
        self.whole.train(False)
        try:
            yield
        finally:
            self.whole.train(True)

    @contextmanager
    def as_at_start(self) -> Iterator[PreTrainedModel]:
        if self.reference is not None:
            yield self.reference
        else:
            trained = self.trained
            with self.whole.disable_adapter():  # type: ignore[operator]
                yield self.inner
            for name, weight in self.whole.named_parameters():  # peft puts every layer's adapter into training again
                weight.requires_grad_(name in trained)


def open_policy(config: RlConfig, device: str) -> Policy:
    bf16 = _has_bf16(device) if config.precision == "auto" else config.precision == "bf16"
    # Adapters leave the weights alone, so these may be narrow; weights that are trained need all their digits.
    dtype = torch.bfloat16 if bf16 and config.lora else torch.float32
    torch.manual_seed(config.seed)
    whole, model, tokenizer = weights.open_trained(config.model, config.lora, dtype=dtype, device=device)
    _refuse_unusable(config, tokenizer, model)
    if config.freeze_embeddings:
        weights.freeze_embeddings(model)
    _freeze_layers(model, config.freeze_layers)
    apart = _apart(model) if config.ahead else None
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    sampler = LocalModel(
        apart or model,
        tokenizer,
        name=config.model,
        max_rows=min(config.max_rows, config.drawn * config.group),  # each has its memory, used or not
        kv_bytes=int(config.kv_gb * (1 << 30)),
        temperature=config.temperature,
    )
    model.set_attn_implementation(NAME)
    model.config.use_cache = False
    policy.check(model)
    reference = None
    if config.kl and (config.lora is None or is_adapter(config.model)):
        reference, _ = load_weights(config.model, dtype=dtype, device=device)
        reference.train(False).requires_grad_(False)
        reference.set_attn_implementation(NAME)
    whole.train(False)
    return Policy(whole, model, tokenizer, sampler, reference, apart)


def save_model(opened: Policy, config: RlConfig, out: Path, card: str) -> None:
    """As a folder that `coa run` and transformers load; complete, or not there. The last thing done with a policy."""
    part, adapter = out.with_name(f".{out.name}.part"), out.with_name(".adapter.part")
    merging = config.lora is not None and config.lora.merge
    opened.sampler.forget()
    lay_out_by_rows(opened.inner)
    opened.inner.set_attn_implementation("sdpa")
    opened.inner.config.use_cache = True
    opened.whole.save_pretrained(adapter if merging else part)  # type: ignore[operator]
    if merging:
        weights.merge(config.model, adapter, part, next(opened.inner.parameters()).dtype)
        weights.remove(adapter)
    weights.publish(part, out, opened.tokenizer, card)


def _apart(model: PreTrainedModel) -> PreTrainedModel:
    """A copy with weights of its own only where these are trained."""
    return copy.deepcopy(model, {id(weight): weight for weight in model.parameters() if not weight.requires_grad})


def _freeze_layers(model: PreTrainedModel, count: int) -> None:
    layers = getattr(model.get_decoder(), "layers", None)  # type: ignore[no-untyped-call]
    if count and (layers is None or count >= len(layers)):
        raise TrainingError(
            f"{count} layers cannot be frozen: the model has {len(layers) if layers is not None else 'none by name'}",
            hint="--set freeze_layers=0",
        )
    for layer in layers[:count] if count and layers is not None else ():
        layer.requires_grad_(False)


def _refuse_unusable(config: RlConfig, tokenizer: TextTokenizer, model: PreTrainedModel) -> None:
    weights.refuse_endless(tokenizer)
    if tokenizer.vocabulary_size > policy.vocabulary_of(model):
        raise TrainingError(
            f"the tokenizer of {config.model} has {tokenizer.vocabulary_size} tokens, the model embeddings for "
            f"{policy.vocabulary_of(model)} only",
            hint="give the tokenizer that belongs to the model (tokenizer.json in its folder)",
        )


def _has_bf16(device: str) -> bool:
    return device != "cpu" and torch.cuda.is_bf16_supported()
