"""Checkpoints that are complete or do not count.

A checkpoint is a folder that several processes may write into. It counts once it is sealed, which means that its files
are on the disk and then a file that marks it as complete. What a killed run left without this mark is removed.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from coa.folder import sync, write_atomic

PREFIX: Final = "checkpoint-"
SEAL: Final = "complete"


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
