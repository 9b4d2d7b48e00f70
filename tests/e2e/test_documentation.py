"""Every command block of README, quickstart and tutorials is run, as a reader would, in an empty folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.documents import ROOT, Block, blocks, fresh_folder, run_blocks

PAGES = [
    "README.md",
    "docs/quickstart.md",
    "docs/tutorials/cluster.md",
    "docs/tutorials/distil-your-team.md",
    "docs/tutorials/fine-tune.md",
    "docs/tutorials/rl-own-reward.md",
]


@pytest.mark.parametrize("name", PAGES)
def test_commands_do_what_the_page_says(name: str, tmp_path: Path) -> None:
    run = [block for block in blocks(ROOT / name) if block.is_run]
    assert run, f"{name} has no block to run"
    done = run_blocks(run, fresh_folder(tmp_path))
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-4_000:]


def test_the_quickstart_goes_the_whole_way() -> None:
    run = "\n".join(block.text for block in blocks(ROOT / "docs" / "quickstart.md") if block.is_run)
    for command in ("run", "teach", "distill", "sft", "eval", "compare"):
        assert f"coa {command} " in run, f"{command} is no longer run"


def test_a_block_that_fails_is_named(tmp_path: Path) -> None:
    page = ROOT / "docs" / "quickstart.md"
    run = [Block(page, 3, "export A=1", True), Block(page, 7, 'test "$A" = 1\ncoa nonsense', True)]
    done = run_blocks(run, fresh_folder(tmp_path))
    assert done.returncode == 2 and "failed in docs/quickstart.md:7" in done.stderr
