"""Every block of docs/guides/python.md and every cell of the notebook is run, with the models that they name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.documents import ROOT
from support.notebooks import RUN_CELLS, cells

PAGE = ROOT / "docs" / "guides" / "python.md"


def python(code: str, folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "COLUMNS": "120"}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-4_000:]
    return done.stdout


def test_every_block_of_the_python_page_runs_in_one_session(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) > 8
    said = python("\n".join(blocks), tmp_path)
    assert "trajectories kept" in said and (tmp_path / "runs" / "rl" / "model").is_dir()


@pytest.mark.slow
def test_every_cell_of_the_notebook_runs_inside_a_loop(tmp_path: Path) -> None:
    (tmp_path / "cells.json").write_text(json.dumps(cells()))
    python(RUN_CELLS, tmp_path, "cells.json")
    assert (tmp_path / "runs" / "sft" / "model").is_dir()


def test_every_stable_name_is_described() -> None:
    import coa

    stages = {
        "ask", "run", "run_many", "record", "teach", "distill", "sft", "sample", "rl", "evaluate", "compare", "scan",
    }  # fmt: skip
    page = PAGE.read_text()
    assert all(f"coa.{name}(" in page for name in stages)
    assert stages | {"open_model", "open_tools", "open_setting", "load_profile"} <= set(coa.__all__)
    assert {"Model", "Tool", "Scorer"} <= set(coa.__all__)
