"""The compiled forward pass: the numbers of the model itself, with what training and adapters change."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    GemmaConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from coa.models.local.lean import lean
from coa.models.local.slots import NAME, Chunk, EngineStep, Slots

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
}
BUILDS = {
    "llama": LlamaConfig,
    "qwen2": Qwen2Config,  # biases
    "qwen3": Qwen3Config,  # norms of queries and keys
    "mistral": MistralConfig,
}


def model_of(config: type[Any], **extra: object) -> PreTrainedModel:
    torch.manual_seed(3)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config(**{**SIZES, **extra}))
    with torch.no_grad():
        for weight in model.parameters():  # biases and norms are as if they were not, at first
            if weight.dim() == 1:
                weight.add_(0.3 * torch.randn_like(weight))
    model.set_attn_implementation(NAME)
    return model


def rows(model: PreTrainedModel, forward: Any) -> torch.Tensor:
    """Two rows read, then both decode while a third reads, then one goes on reading in the middle of its slot."""
    ids = torch.randint(97, (30,), generator=torch.Generator().manual_seed(1))
    slots = Slots(model, count=3, length=24)
    none = torch.empty(0, dtype=torch.long)
    made = []
    for taken, at, decoding, chunks in (
        (ids[:12], [*range(5), *range(7)], none, [Chunk(0, 0, 0, 5), Chunk(1, 0, 5, 12)]),
        (ids[12:20], [5, 7, *range(6)], torch.tensor([5, 7]), [Chunk(2, 0, 2, 8)]),
        (ids[20:30], [6, 8, *range(6, 14)], torch.tensor([6, 8]), [Chunk(2, 6, 2, 10)]),
    ):
        made.append(forward(taken, torch.tensor(at), EngineStep(slots, decoding, chunks)))
    return torch.cat(made)


def own(model: PreTrainedModel) -> Any:
    decoder: Any = model.get_decoder()

    def forward(ids: torch.Tensor, at: torch.Tensor, step: EngineStep) -> torch.Tensor:
        out = decoder(input_ids=ids[None], position_ids=at[None], use_cache=False, coa_step=step)
        return out.last_hidden_state[0]

    return forward


def agree(model: PreTrainedModel) -> bool:
    found = lean(model)
    assert found is not None
    with torch.inference_mode():
        theirs = rows(model, own(model))
        logits = model.get_output_embeddings()(theirs)
        return torch.allclose(rows(model, found.hidden), theirs, atol=1e-4, rtol=1e-4) and torch.allclose(
            found.logits(theirs), logits, atol=1e-4, rtol=1e-4
        )


@pytest.mark.parametrize("build", BUILDS)
def test_it_gives_the_models_own_numbers(build: str) -> None:
    extra = {"sliding_window": None} if build == "mistral" else {}
    assert agree(model_of(BUILDS[build], **extra))


def test_a_scaled_rotary_embedding_is_the_models_own() -> None:
    rope = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
    assert agree(model_of(Qwen3Config, rope_parameters=rope))


def test_what_training_changes_is_in_it_when_it_is_told() -> None:
    model = model_of(LlamaConfig)
    found = lean(model)
    assert found is not None
    with torch.inference_mode():
        before = rows(model, found.hidden)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    found.forget()
    with torch.inference_mode():
        after = rows(model, found.hidden)
        assert not torch.allclose(before, after) and torch.allclose(after, rows(model, own(model)), atol=1e-4)


def test_an_adapter_is_in_it() -> None:
    model = model_of(Qwen2Config)
    with torch.inference_mode():
        plain = rows(model, lean(model).hidden)  # type: ignore[union-attr]
    wrapped = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False))
    inner: PreTrainedModel = wrapped.get_base_model()  # type: ignore[assignment]
    with torch.inference_mode():
        assert not torch.allclose(plain, rows(inner, lean(inner).hidden), atol=1e-2)  # type: ignore[union-attr]
    assert agree(inner)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(lambda: model_of(GemmaConfig), id="another build"),
        pytest.param(lambda: model_of(MistralConfig, sliding_window=8), id="a window"),
        pytest.param(lambda: model_of(LlamaConfig, hidden_act="gelu"), id="another activation"),
    ],
)
def test_what_it_does_not_know_is_left_to_the_model(model: Any) -> None:
    assert lean(model()) is None


def test_an_adapter_of_another_kind_is_left_to_the_model() -> None:
    wrapped = get_peft_model(
        model_of(LlamaConfig), LoraConfig(r=4, target_modules=["q_proj"], use_dora=True, init_lora_weights=False)
    )
    assert lean(wrapped.get_base_model()) is None  # type: ignore[arg-type]
