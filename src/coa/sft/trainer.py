"""transformers' Trainer over planned rows. Sharding, mixed precision and checkpoints are its and accelerate's own."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import Dataset, Sampler, SequentialSampler
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from coa.sft.config import SftConfig
from coa.sft.sharding import Sharding, fsdp_on_cpu, keep_loss_exact
from coa.sft.updates import HeldOut, UpdatePlan
from coa.training import checkpoint

AgentEval = Callable[[torch.nn.Module, int], dict[str, float]]
"""Runs the agent with the model as it is after this number of updates, and returns metrics."""


class RowTrainer(Trainer):
    """Takes rows in the order of the plan. The loss of a row is already its share of the update's mean."""

    def __init__(
        self,
        model: torch.nn.Module,
        args: TrainingArguments,
        plan: UpdatePlan,
        held_out: HeldOut,
        config: SftConfig,
        *,
        agent_eval: AgentEval | None,
        callbacks: list[TrainerCallback],
    ) -> None:
        super().__init__(
            model=model,
            args=args,
            train_dataset=plan,
            eval_dataset=held_out,
            data_collator=_only_row,
            callbacks=callbacks,
        )
        self.remove_callback(PrinterCallback)
        self.remove_callback(ProgressCallback)
        self.loss_is_scaled_for_ga = True  # else it would be divided by the rows of an update once more
        self._plan, self._held_out, self._config = plan, held_out, config
        self._agent_eval = agent_eval
        self._clock = Clock()

    def create_accelerator_and_postprocess(self) -> None:
        with fsdp_on_cpu():
            super().create_accelerator_and_postprocess()
        keep_loss_exact(self.accelerator)

    def compute_loss(self, model: torch.nn.Module, inputs: dict[str, Any], *_: Any, **__: Any) -> Tensor:
        loss: Tensor = model(**inputs).loss
        # Gradients are averaged over processes afterwards, but the rows of all of them are one update.
        return loss * self.args.world_size if model.training else loss

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        self._clock.start()
        return super().training_step(*args, **kwargs)

    def prediction_step(
        self, model: torch.nn.Module, inputs: dict[str, Any], *_: Any, **__: Any
    ) -> tuple[Tensor, None, None]:
        with torch.no_grad():
            return self.compute_loss(model, self._prepare_inputs(inputs)).detach(), None, None

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        self._clock.stop()
        metrics = super().evaluate(*args, **kwargs) if len(self._held_out) else {}
        if self._agent_eval is not None:
            found = self._agent_eval(self.accelerator.unwrap_model(self.model), self.state.global_step)
            self.log(found)
            metrics |= found
        return metrics

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        out = Path(str(self.args.output_dir))
        with checkpoint.saving("a checkpoint", out):
            # transformers notes the best checkpoint if its folder is there, before it writes shards; one process could
            # see it and another not.
            (out / f"{checkpoint.PREFIX}{self.state.global_step}").mkdir(parents=True, exist_ok=True)
            super()._save_checkpoint(*args, **kwargs)

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> LRScheduler:
        if self.lr_scheduler is None:
            chosen = optimizer or self.optimizer
            assert chosen is not None
            self.lr_scheduler = cosine(chosen, steps=num_training_steps, warmup=self._config.warmup_ratio)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs and self.state.global_step:
            seconds = self._clock.lap()
            update = self._plan.updates[self.state.global_step - 1]
            labels = sum(example.labels for example in self._plan.examples(update))
            logs = {**logs, "label_tokens": labels, "label_tokens_per_s": labels / seconds}
        super().log(logs, *args, **kwargs)

    def _get_train_sampler(self, *_: Any, **__: Any) -> Sampler[int]:
        return SequentialSampler(self._plan)

    def _get_eval_sampler(self, eval_dataset: Dataset[Any]) -> Sampler[int]:
        return SequentialSampler(eval_dataset)  # type: ignore[arg-type]


class Clock:
    """Time spent in updates; evaluations and checkpoints in between do not count."""

    def __init__(self) -> None:
        self._spent = 0.0
        self._since: float | None = None

    def start(self) -> None:
        if self._since is None:
            self._since = time.perf_counter()

    def stop(self) -> None:
        if self._since is not None:
            self._spent += time.perf_counter() - self._since
            self._since = None

    def lap(self) -> float:
        self.stop()
        spent, self._spent = self._spent, 0.0
        return max(spent, 1e-9)


def cosine(optimizer: Optimizer, *, steps: int, warmup: float) -> LambdaLR:
    """Rise linearly over the first share of the steps, then fall as a cosine to zero.

    The first update already has a rate above zero: in a run of ten updates none may be lost.
    """
    rising = math.ceil(steps * warmup)

    def factor(done: int) -> float:
        if done < rising:
            return (done + 1) / rising
        return 0.5 * (1 + math.cos(math.pi * (done - rising) / max(steps - rising, 1)))

    return LambdaLR(optimizer, factor)


def _only_row(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    (row,) = rows
    return row


def arguments(
    config: SftConfig, out: Path, plan: UpdatePlan, *, looks: int, bf16: bool, resumed: bool, processes: int = 1
) -> TrainingArguments:
    """The settings as transformers' arguments."""
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(out / "tensorboard")
    steps, sharding = len(plan.updates), Sharding.found()
    recompute = config.gradient_checkpointing and not sharding.checkpoints_activations
    save_every = looks if config.early_stopping_patience else config.save_steps or max(-(-steps // 10), 20)
    return TrainingArguments(
        output_dir=str(out),
        use_cpu=not torch.accelerator.is_available(),
        max_steps=steps,
        per_device_train_batch_size=1,
        per_device_eval_batch_size=1,
        gradient_accumulation_steps=plan.rows_per_update * config.sequence_parallel_size // processes,
        learning_rate=config.lr,
        weight_decay=config.weight_decay,
        adam_beta2=config.adam_beta2,
        max_grad_norm=config.max_grad_norm,
        bf16=bf16,
        gradient_checkpointing=recompute,
        gradient_checkpointing_kwargs={"use_reentrant": False} if recompute else None,
        accelerator_config={"gradient_accumulation_kwargs": {"sync_each_batch": sharding.fsdp}},
        logging_steps=1,
        save_strategy="steps",
        save_steps=save_every,
        eval_strategy="steps" if looks else "no",
        eval_steps=looks or None,
        eval_on_start=bool(looks) and not resumed,
        load_best_model_at_end=config.early_stopping_patience > 0,
        metric_for_best_model="loss" if config.early_stopping_patience else None,
        greater_is_better=False if config.early_stopping_patience else None,
        report_to=list(config.report_to) or "none",
        run_name=out.name,
        seed=config.seed,
        remove_unused_columns=False,
        dataloader_pin_memory=torch.cuda.is_available(),
        ddp_find_unused_parameters=False,
        disable_tqdm=True,
        log_level="error",
        average_tokens_across_devices=False,
    )
