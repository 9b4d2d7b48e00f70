"""Settings that fine-tuning and reinforcement learning share."""

from __future__ import annotations

from typing import ClassVar, Final

from pydantic import Field

from coa.trajectory.types import Frozen

LOGIT_BYTES: Final = 128 << 20
"""Memory that a chunk of logits may take, about."""


class Lora(Frozen):
    """A LoRA adapter to train instead of all weights. If the model is an adapter already, that one is trained
    further."""

    RENAMED: ClassVar[dict[str, str]] = {"targets": "target_modules", "dora": "use_dora"}

    rank: int = Field(16, ge=1)
    """Rank of the adapter's matrices."""
    alpha: int = Field(32, ge=1)
    """Scale of the adapter; its output is multiplied by alpha / rank."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Share of the adapter's inputs that are dropped at random during training."""
    target_modules: str = "all-linear"
    """Layers that get an adapter: `all-linear`, or a regular expression for their names."""
    use_dora: bool = False
    """Use weight-decomposed LoRA (DoRA)."""
    merge: bool = True
    """Write the result as a whole model; if false, write an adapter that names its base model."""
