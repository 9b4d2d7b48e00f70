"""Checkpoints count when they are sealed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from coa.errors import TrainingError
from coa.training.checkpoint import clear_torn, latest, rotate, saving, seal, sealed, step_of


def make(folder: Path, step: int, *, whole: bool = True) -> Path:
    path = folder / f"checkpoint-{step}"
    path.mkdir()
    (path / "weights").write_text("w")
    if whole:
        seal(path)
    return path


def test_a_torn_checkpoint_is_never_the_latest_and_is_cleared(tmp_path: Path) -> None:
    make(tmp_path, 9)
    make(tmp_path, 10)
    torn = make(tmp_path, 11, whole=False)
    found = latest(tmp_path)
    assert found is not None and step_of(found) == 10
    clear_torn(tmp_path)
    assert not torn.exists() and len(sealed(tmp_path)) == 2


def test_rotation_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    paths = [make(tmp_path, step) for step in (5, 10, 100)]
    rotate(tmp_path, keep=1, also=paths[0])
    assert [step_of(path) for path in sealed(tmp_path)] == [5, 100]


def test_there_may_be_none(tmp_path: Path) -> None:
    assert latest(tmp_path) is None


def test_weights_that_cannot_be_written_say_what_to_do(tmp_path: Path) -> None:
    """torch and safetensors each report a full device in a way of their own."""
    for write in (
        lambda: torch.save({"weight": torch.zeros(1000)}, "/dev/full"),
        lambda: save_file({"weight": torch.zeros(1000)}, "/dev/full"),
        lambda: Path("/dev/full").write_bytes(b"x"),
    ):
        with (
            pytest.raises(TrainingError, match=r"cannot write a checkpoint in (.|\n)*goes on from the last"),
            saving("a checkpoint", tmp_path),
        ):
            write()
