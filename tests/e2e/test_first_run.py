"""The first run of README and quickstart is done with the real `nano`, and prints what the pages show."""

from __future__ import annotations

import re
from pathlib import Path

from support.documents import ROOT, blocks, fresh_folder, run_blocks

PAGES = ("README.md", "docs/quickstart.md")


def _shown(page: Path) -> list[str]:
    """The lines of the fence that follows the command."""
    text = page.read_text(encoding="utf-8")
    found = re.search(r"coa run --model nano [^\n]*\n```\n\n```\n(.*?)\n```\n", text, re.DOTALL)
    assert found is not None, f"{page.name} does not show what the first run prints"
    return [_line(line) for line in found[1].splitlines() if line not in ("...", "")]


def _line(line: str) -> str:
    """A line without the time that it took."""
    return re.sub(r"\b\d+\.\d s$", "N s", line.rstrip())


def test_the_first_run_prints_what_the_pages_show(tmp_path: Path) -> None:
    command, *_ = [block for block in blocks(ROOT / "README.md") if "coa run --model nano" in block.text]
    done = run_blocks([command], fresh_folder(tmp_path))
    assert done.returncode == 0, done.stderr[-4_000:]
    printed = [_line(line) for line in (done.stderr + done.stdout).splitlines()]
    for name in PAGES:
        rest = iter(printed)
        missing = [
            line for line in _shown(ROOT / name) if line not in rest
        ]  # `in` goes on behind the line it has found
        assert not missing, f"{name} shows lines that were not printed, or in another order: {missing}"


def test_both_pages_run_the_same_command() -> None:
    runs = {
        line for name in PAGES for block in blocks(ROOT / name) for line in block.text.splitlines() if " nano -" in line
    }
    assert runs == {"coa run --model nano --temperature 0 --seed 3 --out runs/first"}
