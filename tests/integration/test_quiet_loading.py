"""Loading weights draws nothing over what a command prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.commands import ROOT, save_tiny_model


def test_a_run_with_local_weights_shows_no_bar_of_transformers(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "model")
    limits = ("--budget", "model_tokens=60", "--seed", "1")
    command = [sys.executable, "-m", "coa.cli", "run", "Which river ends here?", "--model", str(tmp_path / "model")]
    done = subprocess.run([*command, *limits], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert "Loading weights" not in done.stderr and "it/s" not in done.stderr
    assert done.returncode == 0 and done.stdout, done.stderr
