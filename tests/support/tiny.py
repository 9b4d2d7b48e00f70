"""A model of a few thousand parameters, randomly initialised, with a real tokenizer: everything but the knowledge."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, PreTrainedModel

from coa.models.tokenizer import TextTokenizer
from support.tokenizers import tokenizer


def tiny_model(seed: int = 0, *, sliding_window: int | None = None) -> tuple[PreTrainedModel, TextTokenizer]:
    torch.manual_seed(seed)
    tok = tokenizer("byte_bpe")
    sizes: dict[str, Any] = {
        "vocab_size": tok.vocabulary_size,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "eos_token_id": tok.end_of_turn,
        "initializer_range": 0.3,
        "tie_word_embeddings": True,
    }
    if sliding_window is not None:
        return MistralForCausalLM(MistralConfig(**sizes, sliding_window=sliding_window)), tok
    return LlamaForCausalLM(LlamaConfig(**sizes)), tok
