"""The policy: one set of weights that samples, is trained, and is saved.

The engine that samples and the trainer use the same modules; which kind of attention is computed follows from the
arguments they pass. What the engine caches besides (contexts and packed weights) is dropped before updates and made
again after them. A copy of the trained weights exists only with `one_step_off_policy`, where sampling and training
overlap. How a model is made to take packed rows, for fine-tuning as well, is in `training/packed_model.py`.
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
from coa.models.local.model import is_adapter, load_weights, uses_bf16
from coa.models.tokenizer import TextTokenizer
from coa.rl.config import RlConfig
from coa.training import attention as rows
from coa.training import packed_model, weights
from coa.training.requirements import refuse_endless

NAME: Final = "coa_engine_and_rows"


def attend(*args: Any, coa_step: engine.EngineStep | None = None, **rest: Any) -> tuple[Tensor, None]:
    """The engine's attention in a step of the engine, else attention over packed rows."""
    if coa_step is not None:
        return engine.attend(*args, coa_step=coa_step, **rest)
    return rows.attend(*args, **rest)


AttentionInterface.register(NAME, attend)


@dataclass(frozen=True)
class Policy:
    whole: torch.nn.Module
    """The model with its adapter, if it has one."""
    inner: PreTrainedModel
    """The model itself."""
    tokenizer: TextTokenizer
    sampler: LocalModel
    """The engine, which samples from the policy."""
    reference: PreTrainedModel | None
    """The initial model, for a KL term, where it cannot be had by switching an adapter off."""
    rollout_copy: PreTrainedModel | None = None
    """The model that the engine samples from while the policy is trained; frozen weights are not copied but shared."""

    @property
    def trained(self) -> dict[str, torch.nn.Parameter]:
        return {name: weight for name, weight in self.whole.named_parameters() if weight.requires_grad}

    @property
    def has_dropout(self) -> bool:
        """Whether updates use dropout; an adapter that came with the model may have it."""
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

    def drop_caches(self) -> None:
        """Drop what the engine has cached of weights and contexts, because the weights change or memory is needed."""
        if self.rollout_copy is None:
            self.sampler.forget()

    @torch.no_grad()
    def sync_sampler(self) -> None:
        """Let the engine sample from the policy as it is now. Only while no attempt is being made."""
        if self.rollout_copy is not None:
            for own, new in zip(self.rollout_copy.parameters(), self.inner.parameters(), strict=True):
                if own is not new:
                    own.copy_(new)
        self.sampler.forget()

    @contextmanager
    def training_mode(self) -> Iterator[None]:
        """Dropout and gradient checkpointing are on."""
        self.whole.train(True)
        try:
            yield
        finally:
            self.whole.train(False)

    @contextmanager
    def inference_mode(self) -> Iterator[None]:
        """Within `training_mode`: as when it samples."""
        self.whole.train(False)
        try:
            yield
        finally:
            self.whole.train(True)

    @contextmanager
    def reference_model(self) -> Iterator[PreTrainedModel]:
        """The initial model."""
        if self.reference is not None:
            yield self.reference
        else:
            trained = self.trained
            with self.whole.disable_adapter():  # type: ignore[operator]
                yield self.inner
            for name, weight in self.whole.named_parameters():  # peft puts every layer's adapter into training again
                weight.requires_grad_(name in trained)


def open_policy(config: RlConfig, device: str) -> Policy:
    torch.manual_seed(config.seed)
    bf16 = uses_bf16(config.precision_on(gpu=device != "cpu"))
    dtype = weights.frozen_dtype(bf16, config.lora)
    whole, model, tokenizer = weights.open_trained(config.model, config.lora, dtype=dtype, device=device)
    _refuse_unusable(config, tokenizer, model)
    if config.freeze_embeddings:
        weights.freeze_embeddings(model)
    _freeze_layers(model, config.freeze_layers)
    frozen = {id(weight): weight for weight in model.parameters() if not weight.requires_grad}
    rollout_copy = copy.deepcopy(model, frozen) if config.one_step_off_policy else None  # shares the frozen weights
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    sampler = LocalModel(
        rollout_copy or model,
        tokenizer,
        name=config.model,
        max_rows=min(config.max_num_seqs, config.tasks_per_draw * config.num_generations),  # each takes memory
        kv_bytes=int(config.kv_cache_gb * (1 << 30)),
        temperature=config.temperature,
        bf16=bf16,
    )
    model.set_attn_implementation(NAME)
    model.config.use_cache = False
    packed_model.check(model)
    reference = None
    if config.kl_coef and (config.lora is None or is_adapter(config.model)):
        reference, _ = load_weights(config.model, dtype=dtype, device=device)
        reference.train(False).requires_grad_(False)
        reference.set_attn_implementation(NAME)
    whole.train(False)
    return Policy(whole, model, tokenizer, sampler, reference, rollout_copy)


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
    weights.publish(part, out, opened.tokenizer, card)


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
    refuse_endless(tokenizer)
    if tokenizer.vocabulary_size > packed_model.vocabulary_of(model):
        raise TrainingError(
            f"the tokenizer of {config.model} has {tokenizer.vocabulary_size} tokens, the model embeddings for "
            f"{packed_model.vocabulary_of(model)} only",
            hint="give the tokenizer that belongs to the model (tokenizer.json in its folder)",
        )
