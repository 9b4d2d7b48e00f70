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

PAGE = ROOT / "docs" / "guides" / "python.md"
NOTEBOOK = ROOT / "examples" / "first-steps.ipynb"
CELLS = """
import ast, asyncio, json, sys
async def main():  # as a notebook does it: one namespace, inside a running loop, with `await` at the top level
    names = {"__name__": "__main__"}
    for number, cell in enumerate(json.load(open(sys.argv[1]))):
        code = compile(cell, f"cell {number}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        waiting = eval(code, names)
        if waiting is not None:
            await waiting
asyncio.run(main())
"""


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
    notebook = json.loads(NOTEBOOK.read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) > 4 and all(not cell.get("outputs") for cell in notebook["cells"])
    (tmp_path / "cells.json").write_text(json.dumps(cells))
    python(CELLS, tmp_path, "cells.json")
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
