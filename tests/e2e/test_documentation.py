"""Command blocks of the pages that are read first are run, as a reader would, in an empty folder.

`tests/slow/test_guide_commands.py` runs those of all other pages. A block is left out only with a reason.
"""

from __future__ import annotations

import ast
import re
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from scripts.lint_docs import fences, pages

import coa
from support.documents import (
    FAST_PAGES,
    NOT_RUN,
    OTHER_TESTS,
    ROOT,
    Block,
    blocks,
    fresh_folder,
    run_blocks,
    runnable_pages,
)

PAGES = [str(page.relative_to(ROOT)) for page in pages()]
SHELLS = {"bash", "shell", "console", "zsh", "shell-session"}


@pytest.mark.parametrize("name", FAST_PAGES)
def test_commands_do_what_the_page_says(name: str, tmp_path: Path) -> None:
    done = run_blocks(runnable_pages()[name], fresh_folder(tmp_path))
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-4_000:]


def test_pages_that_tests_name_have_commands() -> None:
    assert set(FAST_PAGES) | set(OTHER_TESTS) <= runnable_pages().keys()
    assert not set(FAST_PAGES) & set(OTHER_TESTS)


@pytest.mark.parametrize("name", PAGES)
def test_no_command_block_escapes_the_tests(name: str) -> None:
    """Only `sh` fences are run, and a reason not to run one has to stand directly above it."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    found = list(fences(lines))
    for start, _, language in found:
        assert language not in SHELLS, f"{name}:{start + 1}: write sh, so that a test runs it"
    below = {start for start, _, language in found if language == "sh"}
    inside = {number for start, end, _ in found for number in range(start, end)}
    for number, line in enumerate(lines):
        if "<!-- not run" in re.sub("`[^`]*`", "", line) and number not in inside:
            assert NOT_RUN.fullmatch(line.strip()) and number + 1 in below, f"{name}:{number + 1}: a stray mark"


@pytest.mark.parametrize("name", PAGES)
def test_examples_parse_and_import_what_exists(name: str) -> None:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    for start, end, language in fences(lines):
        text, place = "\n".join(lines[start + 1 : end]), f"{name}:{start + 1}"
        if language == "python":
            tree = compile(text, place, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            assert isinstance(tree, ast.Module)
            assert not list(missing_names(tree)), f"{place}: {list(missing_names(tree))}"
        elif language == "toml":
            tomllib.loads(text)


def missing_names(tree: ast.Module) -> list[str]:
    """What an example takes from coa that coa does not have."""
    known, missing = {*coa.__all__, "__version__"}, []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "coa":
            module = import_module(node.module or "")
            missing += [f"{node.module}.{alias.name}" for alias in node.names if not hasattr(module, alias.name)]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "coa":
            missing += [] if node.attr in known or is_module(node.attr) else [f"coa.{node.attr}"]
    return sorted(missing)


def is_module(name: str) -> bool:
    try:
        import_module(f"coa.{name}")
    except ImportError:
        return False
    return True


def test_an_example_with_a_name_that_is_gone_is_found() -> None:
    assert missing_names(
        ast.parse("from coa.trajectory import Nonsense\nimport coa\ncoa.nonsense()\ncoa.ask('?')")
    ) == [
        "coa.nonsense",
        "coa.trajectory.Nonsense",
    ]


def test_the_quickstart_goes_the_whole_way() -> None:
    run = "\n".join(block.text for block in blocks(ROOT / "docs" / "quickstart.md") if block.is_run)
    for command in ("teach", "distill", "sft", "eval", "compare"):
        assert f"coa {command} " in run, f"{command} is no longer run"


def test_a_block_that_fails_is_named(tmp_path: Path) -> None:
    page = ROOT / "docs" / "quickstart.md"
    run = [Block(page, 3, "export A=1", True), Block(page, 7, 'test "$A" = 1\ncoa nonsense', True)]
    done = run_blocks(run, fresh_folder(tmp_path))
    assert done.returncode == 2 and "failed in docs/quickstart.md:7" in done.stderr
