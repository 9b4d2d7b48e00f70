"""The settings of `coa sft`: one frozen class, from TOML, `--set key=value` or Python. Unknown keys are refused.

The defaults are the paper's (full fine-tuning, AdamW, cosine with 10 % warm-up, loss on every token the model wrote).
They suit models of 7 billion weights; the embedded model has defaults of its size (`SMALL`). Keys have the names that
TRL or verl give them where one of the two has such a key; docs/guides/sft.md has the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from pydantic import Field, model_validator

from coa.choices import Precision
from coa.models.tokenizer import SMOLLM2
from coa.training.settings import Lora
from coa.trajectory.types import Frozen


class Phase(Frozen):
    """A part of the training with one length limit."""

    RENAMED: ClassVar[dict[str, str]] = {"max_tokens": "max_length"}

    max_length: int = Field(ge=16)
    """Maximum number of tokens in a sample of this phase."""
    epochs: float = Field(gt=0)
    """Number of passes over the data in this phase."""


SMALL: Final = {"lr": 2e-4, "epochs": 1.0, "batch_size": 8, "max_length": 1024, "freeze_embeddings": True}
"""Defaults where the model is smollm2, as in configs/sft/nano.toml."""


class SftConfig(Frozen):
    """Settings of `coa sft`. For the model `smollm2`, some defaults are smaller, so that it trains on a CPU."""

    RENAMED: ClassVar[dict[str, str]] = {
        "warmup": "warmup_ratio", "beta2": "adam_beta2", "max_tokens": "max_length", "context": "length_schedule",
        "row_tokens": "micro_batch_tokens", "skip_failed_calls": "mask_failed_calls",
        "attention": "attn_implementation", "eval_every": "eval_steps", "patience": "early_stopping_patience",
        "init_eval": "num_eval_tasks", "tasks": "eval_tasks", "checkpoint_every": "save_steps",
        "checkpoints_kept": "save_total_limit",
    }  # fmt: skip

    model: str = SMOLLM2
    """Model to train: a folder, a hub id, or smollm2."""
    data: tuple[str, ...] = ()
    """Trajectories or AFM SFT rows to train on: files, folders, or hub ids of data sets."""
    profile: str | None = None
    """Profile that all data must have; none takes each trajectory's own profile."""

    lora: Lora | None = None
    """Train an adapter instead of all weights; none trains all weights."""
    freeze_embeddings: bool = False
    """Do not train the input and output embeddings, which saves time and memory where no new token has to be learnt."""

    lr: float = Field(1.4e-5, gt=0)
    """Highest learning rate of AdamW; it rises over the warm-up and then falls as a cosine."""
    epochs: float = Field(2.5, gt=0)
    """Number of passes over the data."""
    max_steps: int | None = Field(None, ge=1)
    """Number of updates, whatever `epochs` says; the learning rate schedule follows it."""
    batch_size: int = Field(256, ge=1)
    """Number of samples in an update, over all processes."""
    warmup_ratio: float = Field(0.1, ge=0, lt=1)
    """Share of the updates over which the learning rate rises linearly."""
    weight_decay: float = Field(0.0, ge=0)
    """Weight decay of AdamW."""
    adam_beta2: float = Field(0.95, gt=0, lt=1)
    """Decay rate of AdamW's second moment."""
    max_grad_norm: float = Field(1.0, ge=0)
    """Norm to which gradients are clipped; 0 does not clip."""

    max_length: int = Field(32_768, ge=16)
    """Maximum number of tokens in a sample. Longer trajectories lose text from the middle of observations; those that
    still do not fit are dropped."""
    length_schedule: tuple[Phase, ...] = ()
    """Phases with their own length limits, such as 16k first and 32k later; replaces `max_length` and `epochs`."""
    packing: bool = True
    """Put several samples into one row, each with attention to itself alone; if false, a row holds one sample."""
    micro_batch_tokens: int | None = Field(None, ge=16)
    """Maximum number of tokens in a row, which is what goes through the model at a time; none takes `max_length`.
    Memory for activations grows with it."""
    sequence_parallel_size: int = Field(1, ge=1)
    """Number of processes that share each row, which divides the memory for its activations by this number. Must divide
    the number of processes and the model's attention heads."""
    group_by_length: bool = False
    """Form updates from samples of similar length, which keeps several devices equally busy."""

    agent_weights: dict[str, float] = Field(default_factory=dict)
    """Weight of each agent's tokens in the loss, by tag; 1 for agents that are not named, 0 for no loss."""
    mask_failed_calls: bool = False
    """Leave steps whose tool call could not be parsed out of the loss."""

    precision: Precision = Precision.AUTO
    """Type in which the model multiplies; `auto` is bf16 where the GPU or CPU has units for it, else fp32. Weights that
    are trained are fp32."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: a third more time, far less memory."""
    attn_implementation: str = "segments"
    """Attention over packed rows: our own (`segments`), or one of transformers' that supports it, such as
    flash_attention_2."""

    held_out: int = Field(0, ge=0)
    """Number of tasks whose trajectories are not trained on; the loss on them is reported."""
    eval_steps: int = Field(0, ge=0)
    """Number of updates between two evaluations; 0 evaluates ten times in a run."""
    early_stopping_patience: int = Field(0, ge=0)
    """Number of evaluations without a lower held-out loss after which training stops and the best checkpoint is taken;
    0 never stops early."""
    num_eval_tasks: int = Field(0, ge=0)
    """Number of held-out tasks on which the agent is run with real tools before, during and after training."""
    eval_tasks: str | None = None
    """Tasks for `num_eval_tasks`; none takes those of the held-out trajectories."""
    tools: tuple[str, ...] = ()
    """Tools for `num_eval_tasks`, as name=setting or name=module:factory; tools that the data calls are found without
    it."""
    world: str | None = None
    """Offline world whose tools are used for `num_eval_tasks`, by name (atlas) or folder."""
    scorer: str = "auto"
    """Scorer that judges the answers to `num_eval_tasks`."""

    save_steps: int = Field(0, ge=0)
    """Number of updates between two checkpoints; 0 saves ten times in a run, but not more often than
    every 20 updates."""
    save_total_limit: int = Field(1, ge=1)
    """Number of checkpoints to keep."""
    report_to: tuple[str, ...] = ("tensorboard",)
    """Trackers that get the metrics besides metrics.jsonl: tensorboard, wandb, swanlab, trackio."""
    seed: int = 0
    """Seed of the order of samples, of the held-out tasks and of a new adapter."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        return self.length_schedule or (Phase(max_length=self.max_length, epochs=self.epochs),)

    @model_validator(mode="before")
    @classmethod
    def _defaults_for_the_model(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and data.get("model", SMOLLM2) == SMOLLM2:
            return {**SMALL, **data}
        return data

    @model_validator(mode="after")
    def _consistent(self) -> SftConfig:
        if any(weight < 0 for weight in self.agent_weights.values()):
            raise ValueError("agent_weights cannot be negative")
        longest = max(phase.max_length for phase in self.phases)
        if self.micro_batch_tokens is not None and self.micro_batch_tokens < longest:
            raise ValueError("micro_batch_tokens is less than max_length, so the longest samples would fit no row")
        if self.sequence_parallel_size > 1 and self.attn_implementation != "segments":
            raise ValueError("sequence_parallel_size needs attn_implementation=segments, which is the default")
        if self.early_stopping_patience and not (self.held_out or (self.num_eval_tasks and self.eval_tasks is None)):
            raise ValueError("early_stopping_patience needs held-out tasks to evaluate on, such as held_out=20")
        return self
