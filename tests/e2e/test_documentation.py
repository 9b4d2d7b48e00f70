"""Every command block of README and quickstart is run, as a reader would, in a folder of its own with a tiny model."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.commands import save_tiny_model
from support.documents import ROOT, Block, blocks

BROUGHT = ("configs", "examples")
"""What the commands find in a clone."""


@pytest.mark.parametrize("name", ["docs/quickstart.md", "README.md"])
def test_commands_do_what_the_page_says(name: str, tmp_path: Path) -> None:
    run = [block for block in blocks(ROOT / name) if block.is_run]
    assert run, f"{name} has no block to run"
    for folder in BROUGHT:
        shutil.copytree(ROOT / folder, tmp_path / folder)
    done = _shell(run, tmp_path)
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-4_000:]


def test_the_quickstart_goes_the_whole_way() -> None:
    told = "\n".join(block.text for block in blocks(ROOT / "docs" / "quickstart.md") if block.is_run)
    for command in ("run", "teach", "distill", "sft", "eval", "compare"):
        assert f"coa {command} " in told, f"{command} is no longer run"


def test_a_block_that_fails_is_named(tmp_path: Path) -> None:
    page = ROOT / "docs" / "quickstart.md"
    done = _shell([Block(page, 3, "export A=1", True), Block(page, 7, 'test "$A" = 1\ncoa nonsense', True)], tmp_path)
    assert done.returncode == 2 and "failed in docs/quickstart.md:7" in done.stderr


def _shell(run: list[Block], folder: Path) -> subprocess.CompletedProcess[str]:
    """One shell for a page, since a block builds on the ones before it. The block that fails is named."""
    named = (f"trap 'echo failed in {block.place} >&2' ERR\n{block.text}" for block in run)
    script = "set -Eeuo pipefail\n" + "\n".join(named)
    save_tiny_model(folder / "model")
    environment = {**os.environ, "MODEL": str(folder / "model"), "COLUMNS": "120", "NO_COLOR": "1"}
    environment["PATH"] = f"{_programs(folder / 'bin')}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )


def _programs(folder: Path) -> Path:
    """`coa` of the source under test, whatever else is installed."""
    folder.mkdir()
    program = folder / "coa"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m coa.cli "$@"\n')
    program.chmod(0o755)
    return folder
