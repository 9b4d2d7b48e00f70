"""What a fine-tuning run is: one model of settings, from TOML and `--set key=value`. Unknown keys fail.

Defaults are the paper's (full fine-tuning, AdamW, cosine with 10 % warm-up, loss on every token the model wrote).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, model_validator

from coa.models.tokenizer import SMOLLM2
from coa.training.settings import Lora, describe_settings, load_settings
from coa.trajectory.types import Frozen


class Phase(Frozen):
    """A stretch of training with one length limit."""

    max_tokens: int = Field(ge=16)
    epochs: float = Field(gt=0)


SMALL: Final = {"lr": 2e-4, "epochs": 1.0, "batch_size": 8, "max_tokens": 1024, "freeze_embeddings": True}
"""As in configs/sft/nano.toml. The defaults are the paper's, for models fifty times as large."""


class SftConfig(Frozen):
    """Settings of `coa sft`."""

    model: str = SMOLLM2
    """A model folder, a hub id, or smollm2."""
    data: tuple[str, ...] = ()
    """Trajectories or AFM SFT rows: files, folders, or hub ids of data sets."""
    profile: str | None = None
    """Refuse data of any other profile; None takes each trajectory's own."""

    lora: Lora | None = None
    """None trains all weights."""
    freeze_embeddings: bool = False
    """Leave the input and output embeddings as they are: faster and smaller where no new word has to be learnt."""

    lr: float = Field(1.4e-5, gt=0)
    epochs: float = Field(2.5, gt=0)
    max_steps: int | None = Field(None, ge=1)
    """Stop after so many updates, whatever `epochs` says; the learning rate follows it."""
    batch_size: int = Field(256, ge=1)
    """Samples an update, over all processes."""
    warmup: float = Field(0.1, ge=0, lt=1)
    """Share of the updates in which the learning rate rises; then it falls as a cosine."""
    weight_decay: float = Field(0.0, ge=0)
    beta2: float = Field(0.95, gt=0, lt=1)
    max_grad_norm: float = Field(1.0, ge=0)
    """0 does not clip."""

    max_tokens: int = Field(32_768, ge=16)
    """Longer trajectories lose text from the middle of observations; what still does not fit is dropped."""
    context: tuple[Phase, ...] = ()
    """A schedule of length limits, e.g. 16k first and 32k later; replaces `max_tokens` and `epochs`."""
    packing: bool = True
    """Put several samples in a row, each with attention to itself alone. False: a sample a row."""
    row_tokens: int | None = Field(None, ge=16)
    """Tokens a row may hold; None stands for `max_tokens`. Memory for activations grows with it."""
    group_by_length: bool = False
    """Make updates of samples of similar length, which keeps several devices equally busy."""

    agent_weights: dict[str, float] = Field(default_factory=dict)
    """How much the tokens of an agent count, by tag; 1 where not named, 0 for no loss."""
    skip_failed_calls: bool = False
    """No loss on a step whose tool call could not be read."""

    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto: bf16 where a GPU has it, else fp32."""
    gradient_checkpointing: bool = False
    """Compute activations again on the way back: a third more time, far less memory."""
    attention: str = "segments"
    """Attention over packed rows: our own (`segments`), or one of transformers' that can, e.g. flash_attention_2."""

    held_out: int = Field(0, ge=0)
    """Tasks whose trajectories are not trained on; the loss on them is reported."""
    eval_every: int = Field(0, ge=0)
    """Updates between two looks at what is held out; 0: ten looks a run."""
    patience: int = Field(0, ge=0)
    """Stop when the held-out loss has not fallen for so many looks, and take the best; 0 never does."""
    init_eval: int = Field(0, ge=0)
    """Run the agent with real tools on so many held-out tasks before, during and after training."""
    tasks: str | None = None
    """Tasks for `init_eval`; None takes the held-out trajectories' own."""
    tools: tuple[str, ...] = ()
    """For `init_eval`: name=setting or name=module:factory; tools that the data calls are found by themselves."""
    world: str | None = None
    """For `init_eval`: an offline world whose tools are used, by name (atlas) or folder."""
    scorer: str = "auto"
    """How `init_eval` judges answers."""

    checkpoint_every: int = Field(0, ge=0)
    """Updates between checkpoints; 0: ten a run, not more often than every 20."""
    checkpoints_kept: int = Field(1, ge=1)
    report_to: tuple[str, ...] = ("tensorboard",)
    """Besides metrics.jsonl: tensorboard, wandb, swanlab, trackio."""
    seed: int = 0

    @property
    def phases(self) -> tuple[Phase, ...]:
        return self.context or (Phase(max_tokens=self.max_tokens, epochs=self.epochs),)

    @model_validator(mode="after")
    def _consistent(self) -> SftConfig:
        if any(weight < 0 for weight in self.agent_weights.values()):
            raise ValueError("agent_weights cannot be negative")
        if self.row_tokens is not None and self.row_tokens < max(phase.max_tokens for phase in self.phases):
            raise ValueError("row_tokens is less than max_tokens, so the longest samples would fit no row")
        if self.patience and not (self.held_out or (self.init_eval and self.tasks is None)):
            raise ValueError("patience needs held_out tasks to look at, e.g. held_out=20")
        return self


def load_config(path: Path | None, settings: Sequence[str] = (), **given: Any) -> SftConfig:
    """From a TOML file, then what `--set key=value` says, then options of the command; None is not given.

    Without a file, the embedded model gets settings of its size.
    """
    config = load_settings(SftConfig, "sft", path, settings, given)
    if path is None and config.model == SMOLLM2:
        return load_settings(SftConfig, "sft", path, settings, given, SMALL)
    return config


def describe() -> str:
    """Every key, its default and its meaning."""
    return describe_settings({"": SftConfig, "lora.": Lora})
