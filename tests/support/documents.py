"""What the documentation holds, for tests: commands in `sh` fences and in overviews, and a folder to run them in."""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from scripts.lint_docs import fences, pages

from support.commands import save_tiny_model

ROOT = Path(__file__).parents[2]
NOT_RUN = re.compile(r"<!-- not run: .+ -->")


FAST_PAGES: Final = (
    "README.md",
    "docs/concepts/ledger.md",
    "docs/concepts/protocol.md",
    "docs/concepts/trajectory.md",
    "docs/project/releases.md",
    "docs/quickstart.md",
    "docs/tutorials/cluster.md",
    "docs/tutorials/distil-your-team.md",
    "docs/tutorials/fine-tune.md",
    "docs/tutorials/rl-own-reward.md",
)
"""Pages whose commands `make test` runs, each in a folder that has `configs/`, `examples/` and a tiny model."""
OTHER_TESTS: Final = ("docs/tutorials/serve.md",)
"""Pages that have a test file of their own."""


class Block(NamedTuple):
    page: Path
    line: int
    text: str
    is_run: bool

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """The `sh` fences of a page. `<!-- not run: reason -->` on the line above says that one is not to be run."""
    lines = page.read_text(encoding="utf-8").splitlines()
    for start, end, language in fences(lines):
        if language == "sh":
            marked = start > 0 and NOT_RUN.fullmatch(lines[start - 1].strip())
            yield Block(page, start + 1, "\n".join(lines[start + 1 : end]), not marked)


def runnable_pages() -> dict[str, list[Block]]:
    """Every page of the project with commands, by its path, and the blocks of it that are to be run."""
    found = {str(page.relative_to(ROOT)): [block for block in blocks(page) if block.is_run] for page in pages()}
    return {name: run for name, run in found.items() if run}


def commands(block: Block) -> Iterator[list[str]]:
    """The calls of `coa` in a block, as words; `python -m coa.cli` behind a launcher counts too."""
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if "coa.cli" in words:
            words = ["coa", *words[words.index("coa.cli") + 1 :]]
        if words and words[0] == "coa":
            yield words[1:]


def overviews(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Place, and a call of `coa` from a fence without a language: a command, then what it does, further right."""
    lines = page.read_text(encoding="utf-8").splitlines()
    for start, end, language in fences(lines):
        if language == "":
            for number in range(start + 1, end):
                if lines[number].startswith("coa "):
                    command = re.split(r"\s{3,}|\s+(?:\.\.\.|/ coa)", lines[number])[0].removesuffix("\\")
                    yield f"{page.relative_to(ROOT)}:{number + 1}", command.split()[1:]


def fresh_folder(folder: Path) -> Path:
    """What a reader has after cloning: `configs/` and `examples/`; and a tiny model of random weights in `model/`."""
    for name in ("configs", "examples"):
        shutil.copytree(ROOT / name, folder / name)
    save_tiny_model(folder / "model")
    return folder


def run_blocks(run: list[Block], folder: Path, timeout_s: float = 1_800) -> subprocess.CompletedProcess[str]:
    """One shell for a page, since a block builds on the ones before it. The block that fails is named."""
    named = (f"trap 'echo failed in {block.place} >&2' ERR\n{block.text}" for block in run)
    script = "set -Eeuo pipefail\n" + "\n".join(named)
    environment = {**os.environ, "MODEL": str(folder / "model"), "COLUMNS": "120", "NO_COLOR": "1"}
    environment["PATH"] = f"{_programs(folder / 'bin')}{os.pathsep}{os.environ['PATH']}"
    with subprocess.Popen(
        ["bash", "-c", script],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as shell:
        try:
            out, err = shell.communicate(timeout=timeout_s)
        except BaseException:  # also where the test is stopped: nothing that a page started stays behind
            os.killpg(shell.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(shell.args, shell.returncode, out, err)


def built_site(temporary: pytest.TempPathFactory) -> Path:
    """The documentation site, as `make docs` builds it: a warning fails. Processes that test side by side share one."""
    shared = temporary.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder = shared / "documentation-site"
    with (shared / "documentation-site.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not folder.exists():
            _build_site(folder)
    return folder


def _build_site(folder: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if built.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        pytest.fail(built.stderr[-4_000:], pytrace=False)


def _programs(folder: Path) -> Path:
    """`coa` and `python` of the source under test, whatever else is installed."""
    folder.mkdir(exist_ok=True)
    for name, command in (("coa", "-m coa.cli "), ("python", "")):
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {command}"$@"\n')
        program.chmod(0o755)
    return folder
