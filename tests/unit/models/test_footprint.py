"""The size of a model from its headers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coa.errors import ModelError
from coa.models.footprint import ModelShape, shape_of

SMOLLM2 = ModelShape(134_515_008, 30, 576, 1536, 576, 192, 49_152, True)


def test_the_embedded_model_and_its_adapter_have_one_shape() -> None:
    assert shape_of("smollm2") == shape_of("nano") == SMOLLM2


def test_without_weights_the_config_says_how_many_there_are(tmp_path: Path) -> None:
    config = {
        "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
        "num_key_value_heads": 3, "vocab_size": 49_152, "tie_word_embeddings": True,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert shape_of(tmp_path) == SMOLLM2


def test_what_is_no_model_is_refused_and_what_is_unknown_is_not_guessed(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        shape_of(tmp_path)
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    assert shape_of(tmp_path) is None and shape_of("http://127.0.0.1:9/v1") is None
    with pytest.raises(ModelError, match="there is no folder"):
        shape_of("./nowhere")
    (tmp_path / "model.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00not json")
    with pytest.raises(ModelError, match="not a readable safetensors file"):
        shape_of(tmp_path)
