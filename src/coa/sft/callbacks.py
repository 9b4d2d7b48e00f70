"""What happens besides the updates: metrics.jsonl, progress, complete checkpoints, early stopping, Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import orjson
from accelerate import PartialState
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from coa.progress import Progress, time_left
from coa.training.checkpoint import PREFIX, Interruption, rotate, seal
from coa.training.run_folder import append, clock, keep_until

_NAMES: Final = {"learning_rate": "lr", "eval_loss": "held_out_loss"}


class Metrics(TrainerCallback):
    """Appends to metrics.jsonl. Rows that a killed run wrote after its last checkpoint are removed when it resumes."""

    def __init__(self, path: Path, progress: Progress) -> None:
        self._path, self._progress = path, progress
        self._paces: list[float] = []
        self._rows = 0
        """Rows of this update that have been computed."""
        self._trained = self._began = 0.0
        self._loss = ""

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._began = time.monotonic()
        if state.is_world_process_zero:
            keep_until(self._path, state.global_step)
            self._show(args, state)

    def on_substep_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """A row has been computed and more of the update follow."""
        self._rows += 1
        self._show(args, state)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._rows = 0
        self._show(args, state)

    def _show(self, args: TrainingArguments, state: TrainerState) -> None:
        if not state.is_world_process_zero:
            return
        note = [f"row {self._rows + 1} of {args.gradient_accumulation_steps}", self._loss]
        if self._trained:
            spent = time.monotonic() - self._began
            note.append(f"{self._trained:,.0f} trained tokens, {self._trained / max(spent, 1e-9):.0f} tokens/s")
        note.append(time_left(self._left(state)))
        self._progress.update(state.global_step, state.max_steps, ", ".join(filter(None, note)))

    def _left(self, state: TrainerState) -> float | None:
        """Seconds that the remaining updates will take."""
        if not self._paces:
            return None
        return (state.max_steps - state.global_step) * sum(self._paces) / len(self._paces)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl,
        logs: Mapping[str, float] | None = None, **_: Any,
    ) -> None:  # fmt: skip
        if not state.is_world_process_zero or logs is None:
            return
        found = {_NAMES.get(name, name): value for name, value in logs.items() if not _of_no_interest(name)}
        if not found:
            return
        append(self._path, state.global_step, found)
        if "loss" in found:
            self._say_pace(state, found)
        elif "held_out_loss" in found:
            self._progress.say(f"step {state.global_step}: held-out loss {found['held_out_loss']:.4f}")

    def _say_pace(self, state: TrainerState, found: Mapping[str, float]) -> None:
        pace = found["label_tokens_per_s"]
        self._paces = [*self._paces[-9:], found["label_tokens"] / pace]
        self._trained += found["label_tokens"]
        self._loss = f"loss {found['loss']:.4f}"
        left = self._left(state) or 0.0
        self._progress.say(
            f"step {state.global_step}/{state.max_steps}  loss {found['loss']:.4f}  lr {found['lr']:.2e}  "
            f"{pace:.0f} trained tokens/s  {clock(left)} left"
        )


def _of_no_interest(name: str) -> bool:
    return name in ("epoch", "total_flos") or name.startswith(("train_", "eval_runtime", "eval_samples", "eval_steps"))


class Checkpoints(TrainerCallback):
    """Marks each checkpoint as complete once every process has written its part, then removes old ones."""

    def __init__(self, out: Path, keep: int) -> None:
        self._out, self._keep = out, keep

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        everyone = PartialState()
        everyone.wait_for_everyone()
        if everyone.is_main_process:
            seal(self._out / f"{PREFIX}{state.global_step}")
            best = Path(state.best_model_checkpoint) if state.best_model_checkpoint else None
            rotate(self._out, keep=self._keep, also=best)
        everyone.wait_for_everyone()

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        # The last update has been logged, evaluated and saved; transformers would do all three again.
        control.should_log = control.should_evaluate = control.should_save = False


class EarlyStop(TrainerCallback):
    """Stops after `patience` evaluations without a lower held-out loss. It reads the log, so a resumed run agrees."""

    def __init__(self, patience: int) -> None:
        self._patience = patience

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if _since_best(state.log_history) >= self._patience:
            control.should_training_stop = True


def has_stopped(checkpoint: Path, patience: int) -> bool:
    """Whether training had stopped early when this checkpoint was made."""
    state = orjson.loads((checkpoint / "trainer_state.json").read_bytes())
    return _since_best(state["log_history"]) >= patience


def _since_best(rows: Sequence[Mapping[str, float]]) -> int:
    """Number of evaluations since the one with the lowest held-out loss."""
    losses = [row["eval_loss"] for row in rows if "eval_loss" in row]
    return len(losses) - 1 - losses.index(min(losses)) if losses else 0


class StopWhenAsked(TrainerCallback):
    """Saves and stops after the current update when Ctrl-C or SIGTERM comes.

    Several processes would not get a signal at the same update, so with more than one it does nothing, and the last
    checkpoint is what remains.
    """

    def __init__(self, interruption: Interruption) -> None:
        self._interruption = interruption

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if args.world_size == 1:
            self._interruption.listen()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self._interruption.asked and state.global_step < state.max_steps:
            control.should_save = True
            control.should_training_stop = True
