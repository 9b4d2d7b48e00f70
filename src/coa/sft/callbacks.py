"""What happens beside the updates: metrics.jsonl, a line of progress, sealed checkpoints, early stop, Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import orjson
from accelerate import PartialState
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from coa.sft.plan import Plan
from coa.training.checkpoint import PREFIX, rotate, seal

_NAMES: Final = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "learning_rate": "lr",
    "label_tokens": "label_tokens",
    "label_tokens_per_s": "label_tokens_per_s",
    "eval_loss": "held_out_loss",
}


class Metrics(TrainerCallback):
    """Appends to metrics.jsonl. What a killed run wrote after its last checkpoint is taken back when it goes on."""

    def __init__(self, path: Path, tell: Callable[[str], None], plan: Plan) -> None:
        self._path, self._tell, self._plan = path, tell, plan
        self._paces: list[float] = []

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if state.is_world_process_zero:
            keep_until(self._path, state.global_step)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, float] | None = None,
        **_: Any,
    ) -> None:
        if not state.is_world_process_zero or logs is None:
            return
        found = {_NAMES.get(name, name): value for name, value in logs.items() if not _of_no_interest(name)}
        if not found:
            return
        row = {"step": state.global_step, **found, "time": round(time.time(), 3)}
        with self._path.open("ab") as file:
            file.write(orjson.dumps(row) + b"\n")
        if "loss" in found:
            self._progress(state, found)
        elif "held_out_loss" in found:
            self._tell(f"step {state.global_step}: held-out loss {found['held_out_loss']:.4f}")

    def _progress(self, state: TrainerState, found: Mapping[str, float]) -> None:
        pace = found["label_tokens_per_s"]
        self._paces = [*self._paces[-9:], found["label_tokens"] / pace]
        left = (state.max_steps - state.global_step) * sum(self._paces) / len(self._paces)
        self._tell(
            f"step {state.global_step}/{state.max_steps}  loss {found['loss']:.4f}  lr {found['lr']:.2e}  "
            f"{pace:.0f} trained tokens/s  {clock(left)} left"
        )


def _of_no_interest(name: str) -> bool:
    return name in ("epoch", "total_flos") or name.startswith(("train_", "eval_runtime", "eval_samples", "eval_steps"))


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def keep_until(path: Path, step: int) -> None:
    """Take back rows of later steps, and a row that was cut off."""
    if not path.is_file():
        return
    kept = []
    for line in path.read_bytes().splitlines():
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if row["step"] <= step and (step or row["step"]):
            kept.append(line + b"\n")
    part = path.with_suffix(".part")
    part.write_bytes(b"".join(kept))
    os.replace(part, path)


class Checkpoints(TrainerCallback):
    """Seals each checkpoint once every process has written its part, then lets old ones go."""

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
        # The last update has been logged, looked at and saved; transformers would do all three again.
        control.should_log = control.should_evaluate = control.should_save = False


class EarlyStop(TrainerCallback):
    """Stops when the held-out loss has not fallen for so many looks. It reads the log, so a resumed run agrees."""

    def __init__(self, patience: int) -> None:
        self._patience = patience

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        losses = [row["eval_loss"] for row in state.log_history if "eval_loss" in row]
        since_best = len(losses) - 1 - losses.index(min(losses)) if losses else 0
        if since_best >= self._patience:
            control.should_training_stop = True


class Interruption(TrainerCallback):
    """Ctrl-C and SIGTERM: finish the update, save, stop. A second one stops at once.

    Several processes would not hear it at the same update, so there the signal does what it always does; the last
    checkpoint is what remains.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.asked = False
        self._tell = tell
        self._before: dict[signal.Signals, Any] = {}

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if args.world_size > 1 or threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._ask)

    def _ask(self, *_: object) -> None:
        self.asked = True
        self._restore()
        self._tell("asked to stop: this update is finished and saved first; once more stops at once")

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.asked and state.global_step < state.max_steps:
            control.should_save = True
            control.should_training_stop = True

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
