"""The estimate of memory, worked out by hand for SmolLM2."""

from __future__ import annotations

from coa.models.footprint import Memory, ModelShape, running_memory
from coa.training.footprint import training_memory
from coa.training.settings import Lora

SMOLLM2 = ModelShape(134_515_008, 30, 576, 1536, 576, 192, 49_152, True)


def parts(lora: Lora | None = None, **settings: int | bool) -> dict[str, int]:
    return dict(training_memory(SMOLLM2, tokens=1024, bf16=False, lora=lora, **settings).parts)  # type: ignore[arg-type]


def test_training_all_weights_takes_16_bytes_for_each_and_the_activations() -> None:
    whole = parts()
    assert (whole["weights"], whole["gradients"], whole["optimizer"]) == (538_060_032, 538_060_032, 1_076_120_064)
    # In each of 30 layers 9 * 576 + 2 * 192 + 4 * 1536 = 11,712 numbers of 4 bytes for each token.
    assert whole["activations"] == 4 * 1024 * 30 * 11_712
    assert whole["logits"] == (256 << 20) + 4 * 49_152 * 576
    # With gradient checkpointing one number for each of 576 in each layer, and one whole layer.
    assert parts(gradient_checkpointing=True)["activations"] == 4 * 1024 * (30 * 576 + 11_712)


def test_what_is_not_trained_takes_no_gradients() -> None:
    assert parts(freeze_embeddings=True)["gradients"] == 4 * (134_515_008 - 49_152 * 576)
    assert parts(freeze_layers=10)["activations"] == 4 * 1024 * 20 * 11_712
    # Rank 8; each linear part of a layer has two matrices, of its inputs and of its outputs.
    sides = 2 * (576 + 576) + 2 * (576 + 192) + 3 * (576 + 1536)
    adapter = parts(Lora(rank=8, merge=False))
    assert adapter["gradients"] == 4 * 8 * 30 * sides and "merging the adapter" not in adapter


def test_merging_counts_where_it_takes_more_than_training() -> None:
    merged = parts(Lora(rank=8), gradient_checkpointing=True)
    assert sum(merged.values()) == merged["program"] + 4 * merged["weights"]


def test_an_estimate_is_said_in_gigabytes_with_its_larger_parts() -> None:
    memory = Memory(parts={"weights": 1_500_000_000, "crumbs": 1000})
    assert str(memory) == "about 1.50 GB (weights 1.50 GB)" and memory.total == 1_500_001_000
    assert running_memory(SMOLLM2, kv_bytes=7).parts["contexts"] == 7
