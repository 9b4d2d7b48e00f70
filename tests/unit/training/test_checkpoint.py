"""Checkpoints count when they are sealed."""

from __future__ import annotations

import resource
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
    """torch and safetensors each report it in a way of their own. A limit on file sizes stands for a full disk."""
    weights, before = {"weight": torch.zeros(100_000)}, resource.getrlimit(resource.RLIMIT_FSIZE)
    for write in (
        lambda: torch.save(weights, tmp_path / "a.pt"),
        lambda: save_file(weights, tmp_path / "a.safetensors"),
        lambda: (tmp_path / "a.bin").write_bytes(bytes(100_000)),
    ):
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
        try:
            with (
                pytest.raises(TrainingError, match="cannot write a checkpoint") as raised,
                saving("a checkpoint", tmp_path),
            ):
                write()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert "goes on from the last complete checkpoint" in str(raised.value)
