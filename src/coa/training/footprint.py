"""How much memory training takes, from the shape of the model and the settings. Nothing is loaded for it.

The formula, for a model of P weights of which T are trained, and a row of N tokens:

    weights        4 P bytes; 2 P under an adapter in bf16
    loading        the same again: the file that weights are read from stays mapped into memory
    gradients      4 T
    optimizer      8 T, AdamW's two moments
    activations    N times, for each layer, what the backward pass needs: 9 times the hidden width, 2 times the width of
                   the keys, and 4 times the width of the feed-forward part, 4 bytes each (2 in bf16).
                   With gradient checkpointing: the hidden width for each layer, and all of this for one layer
    logits         two chunks of `LOGIT_BYTES`, and the gradient of the output head where it is trained
    program        Python, torch and transformers

Merging an adapter at the end takes four times the weights, which can be more than training takes. All of it is for one
process; with several, FSDP divides weights, gradients and optimizer among them.
"""

from __future__ import annotations

from pathlib import Path

from coa.models.footprint import PROGRAM_BYTES, Memory, ModelShape
from coa.training.settings import LOGIT_BYTES, Lora


def trained_parameters(
    shape: ModelShape, lora: Lora | None, *, freeze_embeddings: bool = False, freeze_layers: int = 0
) -> int:
    if lora is not None:
        return lora.rank * shape.layers * shape.linear_sides
    frozen = shape.embeddings if freeze_embeddings else 0
    return shape.parameters - frozen - freeze_layers * shape.layer


def computes_in_bf16(precision: str) -> bool:
    """By the setting, or with `auto` if there is an NVIDIA device. Training asks torch itself (`weights.uses_bf16`)."""
    return precision == "bf16" or (precision == "auto" and Path("/dev/nvidia0").exists())


def training_memory(
    shape: ModelShape, *, tokens: int, precision: str, lora: Lora | None, freeze_embeddings: bool = False,
    freeze_layers: int = 0, gradient_checkpointing: bool = False,
) -> Memory:  # fmt: skip
    """The peak during an update whose longest row has this number of tokens."""
    bf16 = computes_in_bf16(precision)
    trained = trained_parameters(shape, lora, freeze_embeddings=freeze_embeddings, freeze_layers=freeze_layers)
    number = 2 if bf16 else 4
    kept = 9 * shape.hidden + 2 * shape.keys + 4 * shape.intermediate
    layers = max(shape.layers - freeze_layers, 1)
    activations = shape.layers * shape.hidden + kept if gradient_checkpointing else layers * kept
    head = 0 if lora is not None or freeze_embeddings else 4 * shape.vocabulary * shape.hidden
    weights = (2 if lora is not None and bf16 else 4) * shape.parameters
    memory = Memory(
        parts={
            "weights": weights,
            "loading": weights,
            "gradients": 4 * trained,
            "optimizer": 8 * trained,
            "activations": number * tokens * activations,
            "logits": 2 * LOGIT_BYTES + head,
            "program": PROGRAM_BYTES,
        }
    )
    merging = PROGRAM_BYTES + 4 * weights if lora is not None and lora.merge else 0
    if merging <= memory.total:
        return memory
    return Memory(parts={**memory.parts, "merging the adapter": merging - memory.total})
