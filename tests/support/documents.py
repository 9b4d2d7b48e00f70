"""What the documentation holds, for tests: its pages, commands in `sh` fences and overviews, links and headings."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
NOT_RUN = re.compile(r"<!-- not run: .+ -->")
_FENCE = re.compile(r"^(`{3,})(\w*)\s*$")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
_NOT_OURS = {"runs", "build", "dist", "node_modules"}


class Block(NamedTuple):
    page: Path
    line: int
    text: str
    is_run: bool

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    return sorted(path for path in ROOT.rglob("*.md") if not any(map(_is_foreign, path.relative_to(ROOT).parts)))


def _is_foreign(name: str) -> bool:
    """Whether a folder of this name holds what others wrote, such as `.venv` and the environments of slow tests."""
    return name in _NOT_OURS or name.startswith(".venv")


def blocks(page: Path) -> Iterator[Block]:
    """The `sh` fences of a page. `<!-- not run: reason -->` on the line above says that one is not to be run."""
    lines = page.read_text(encoding="utf-8").splitlines()
    for start, end, language in _fences(lines):
        if language == "sh":
            marked = start > 0 and NOT_RUN.fullmatch(lines[start - 1].strip())
            yield Block(page, start + 1, "\n".join(lines[start + 1 : end]), not marked)


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
    for start, end, language in _fences(lines):
        if language == "":
            for number in range(start + 1, end):
                if lines[number].startswith("coa "):
                    command = re.split(r"\s{3,}|\s+(?:\.\.\.|/ coa)", lines[number])[0].removesuffix("\\")
                    yield f"{page.relative_to(ROOT)}:{number + 1}", command.split()[1:]


def links(page: Path) -> Iterator[str]:
    """Targets of links, code aside."""
    lines = page.read_text(encoding="utf-8").splitlines()
    code = {number for start, end, _ in _fences(lines) for number in range(start, end + 1)}
    for number, line in enumerate(lines):
        if number not in code:
            for found in _LINK.finditer(re.sub(r"`[^`]*`", "", line)):
                yield found.group(1) or found.group(2)


def anchors(page: Path) -> set[str]:
    """Headings as GitHub names them."""
    lines = page.read_text(encoding="utf-8").splitlines()
    code = {number for start, end, _ in _fences(lines) for number in range(start, end + 1)}
    headings = [line.lstrip("#").strip() for n, line in enumerate(lines) if n not in code and line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _fences(lines: list[str]) -> Iterator[tuple[int, int, str]]:
    """First and last line of each fence, and its language."""
    opened: tuple[int, str, str] | None = None
    for number, line in enumerate(lines):
        if opened is None:
            if found := _FENCE.match(line):
                opened = number, found.group(1), found.group(2)
        elif line.rstrip() == opened[1]:
            yield opened[0], number, opened[2]
            opened = None
