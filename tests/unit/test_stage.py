"""Packages that are called like functions, and the names that `import coa` promises."""

from __future__ import annotations

import subprocess
import sys

import coa


def test_a_stage_can_be_called_whatever_of_its_package_was_imported_before() -> None:
    for first in ("", "import coa.evaluate.report", "from coa.evaluate import evaluate", "import coa.cli.evaluate"):
        code = (
            f"{first}\nimport coa\n"
            "try: coa.evaluate(coa.EvalConfig(), out='x')\n"
            "except coa.CoaError as error: print(error.message)\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
        assert done.stdout == "there is nothing to evaluate on\n", done.stderr


def test_the_parts_of_a_stage_are_still_found_in_its_package() -> None:
    from coa.evaluate.config import EvalConfig

    assert coa.evaluate.config.EvalConfig is EvalConfig  # type: ignore[attr-defined]
    assert callable(coa.rl) and callable(coa.sft) and callable(coa.distill) and callable(coa.compare)
