"""Checkpoints that are complete or do not count, and the signals that end a run at one.

A checkpoint is a folder that several processes may write into. It counts once it is sealed, which means that its files
are on the disk and then a file that marks it as complete. What a killed run left without this mark is removed.
"""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError

from coa.errors import TrainingError
from coa.folder import sync, write_atomic
from coa.progress import Progress

PREFIX: Final = "checkpoint-"
SEAL: Final = "complete"


@contextmanager
def saving(what: str, folder: Path) -> Iterator[None]:
    """Around everything that writes weights: torch and safetensors each report a full disk in a way of their own."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
        raise TrainingError(
            f"cannot write {what} in {folder}: {reason}",
            hint=f"make room on the disk ({shutil.disk_usage(folder).free >> 20:,} MB are free); the same command then "
            "goes on from the last complete checkpoint",
        ) from error


def seal(checkpoint: Path) -> None:
    """Mark a checkpoint as complete, after everything else."""
    sync(checkpoint)
    write_atomic(checkpoint / SEAL, b"")
    sync(checkpoint.parent, inside=False)


def sealed(folder: Path) -> list[Path]:
    """Whole checkpoints in a folder, oldest first."""
    found = [path for path in folder.glob(f"{PREFIX}*") if (path / SEAL).is_file() and _step(path) is not None]
    return sorted(found, key=lambda path: _step(path) or 0)


def latest(folder: Path) -> Path | None:
    return (sealed(folder) or [None])[-1]  # type: ignore[list-item]


def step_of(checkpoint: Path) -> int:
    """The number of updates done when it was made."""
    step = _step(checkpoint)
    assert step is not None, checkpoint
    return step


def clear_torn(folder: Path) -> None:
    """Remove what a killed run left unsealed."""
    for path in folder.glob(f"{PREFIX}*"):
        if not (path / SEAL).is_file():
            shutil.rmtree(path, ignore_errors=True)


def rotate(folder: Path, *, keep: int, also: Path | None = None) -> None:
    """Keep the newest `keep` whole ones, and `also` (the best one, say)."""
    whole = sealed(folder)
    for path in whole[: max(len(whole) - keep, 0)]:
        if also is None or path.resolve() != also.resolve():
            # Without its seal first, so that a kill in between does not leave half of it as whole.
            (path / SEAL).unlink()
            shutil.rmtree(path)


def _step(path: Path) -> int | None:
    number = path.name.removeprefix(PREFIX)
    return int(number) if number.isdecimal() else None


class Interruption:
    """Ctrl-C and SIGTERM: finish the current step, save, stop. A second signal stops at once."""

    def __init__(self, progress: Progress, what: str) -> None:
        self.asked = False
        self._progress, self._what = progress, what
        self._before: dict[signal.Signals, Any] = {}

    def listen(self) -> None:
        """Begin to handle signals; only the main thread can."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._ask)

    def restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _ask(self, *_: object) -> None:
        self.asked = True
        self.restore()
        self._progress.say(
            f"asked to stop: finishing and saving this {self._what} first; a second signal stops at once"
        )
