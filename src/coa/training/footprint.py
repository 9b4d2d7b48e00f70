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

Merging an adapter at the end takes four times the weights, which can be more than training takes.

Where several processes divide the model (`Division`), the estimate is for one of n of them:

    weights, gradients and optimizer: a n-th part each; nothing on the GPU if the optimizer is offloaded
    activations    of the tokens of this process: a row, or its piece under sequence parallelism
    gathered       weights that are put together while they are used: two layers and the output head in the type that is
                   computed in, and the gradients of one layer before they are divided
    logits         as above, and the head's gradient once more where bf16 is computed in
    loading        on a CPU: the first process reads all weights. A GPU only gets its part
    program        on a GPU an allowance of 2 GB for CUDA and NCCL, which is not measured
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from coa.choices import Offload
from coa.models.footprint import PROGRAM_BYTES, Memory, ModelShape
from coa.training.settings import LOGIT_BYTES, Lora

DEVICE_BYTES: Final = 2_000_000_000
"""Allowance for what CUDA and NCCL take on a GPU before there is a model."""


@dataclass(frozen=True)
class Division:
    """How several processes divide the model and the rows."""

    processes: int
    sequence: int = 1
    """Number of processes that share a row."""
    offload: Offload = Offload.NONE
    """`optimizer` keeps weights and gradients in the machine's memory, too."""
    gpu: bool = True


def millions(parameters: int) -> str:
    """For people: `7,616 M`."""
    return f"{parameters / 1e6:,.0f} M" if parameters >= 1e8 else f"{parameters / 1e6:.3g} M"


def trained_parameters(
    shape: ModelShape, lora: Lora | None, *, freeze_embeddings: bool = False, freeze_layers: int = 0
) -> int:
    if lora is not None:
        return lora.rank * shape.layers * shape.linear_sides
    frozen = shape.embeddings if freeze_embeddings else 0
    return shape.parameters - frozen - freeze_layers * shape.layer


def training_memory(
    shape: ModelShape, *, tokens: int, bf16: bool, lora: Lora | None, freeze_embeddings: bool = False,
    freeze_layers: int = 0, gradient_checkpointing: bool = False, division: Division | None = None,
) -> Memory:  # fmt: skip
    """The peak during an update whose longest row has this number of tokens, of one process.

    Without `division` one process trains alone, on a CPU.
    """
    trained = trained_parameters(shape, lora, freeze_embeddings=freeze_embeddings, freeze_layers=freeze_layers)
    number = 2 if bf16 else 4
    kept = 9 * shape.hidden + 2 * shape.keys + 4 * shape.intermediate
    layers = max(shape.layers - freeze_layers, 1)
    head = 0 if lora is not None or freeze_embeddings else shape.vocabulary * shape.hidden
    weights = (2 if lora is not None and bf16 else 4) * shape.parameters
    division = division or Division(1, gpu=False)
    of_all = {"weights": weights, "gradients": 4 * trained, "optimizer": 8 * trained}
    if division.gpu and division.offload is Offload.OPTIMIZER:
        of_all = dict.fromkeys(of_all, 0)
    between = 0 if division.gpu and division.offload is Offload.ACTIVATIONS else shape.layers * shape.hidden
    activations = between + kept if gradient_checkpointing else layers * kept
    gathered, copied = 0, 0
    if division.processes > 1:
        gathered = number * (2 * shape.layer + shape.vocabulary * shape.hidden)
        gathered += (number + 4) * shape.layer if lora is None else 0
        copied = 2 * head if bf16 else 0
    memory = Memory(
        parts={name: -(-size // division.processes) for name, size in of_all.items()}
        | {
            "activations": number * -(-tokens // division.sequence) * activations,
            "gathered": gathered,
            "logits": 2 * LOGIT_BYTES + 4 * head + copied,
            "loading": 0 if division.gpu else weights,
            "program": DEVICE_BYTES if division.gpu else PROGRAM_BYTES,
        }
    )
    if division.gpu:
        return memory
    merging = PROGRAM_BYTES + 4 * weights if lora is not None and lora.merge else 0
    if merging <= memory.total:
        return memory
    return Memory(parts={**memory.parts, "merging the adapter": merging - memory.total})
