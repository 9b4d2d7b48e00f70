"""Checks the documentation: links lead somewhere, and words of the project's old private dialect do not come back.

    .venv/bin/python scripts/lint_docs.py           # part of `make lint`

Words are looked for in the prose of Markdown files, and in comments, docstrings and messages of the Python sources;
`code` and fences are left out. Anchors are compared with headings as a code host names them.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
_CLAUSE: Final = r"(?:what|how|that|whether|which|to)\b"
"""What follows the person in "we tell you what we found"."""
DIALECT: Final = {
    r"so many(?! \w+ that)": "N, or the number",
    r"told(?! apart)": "reported, given, or printed",
    rf"(?<!cannot )(?<!can )tell(?:s|ing)?(?! apart| whether| which| \w+ {_CLAUSE})": "shows, or reports",
    r"mend(?:s|ed|ing)?": "fix, or repair",
    r"cures?": "hint, or fix",
    r"as it comes": "unchanged, or untrained",
    r"walled in": "isolated",
    r"(?:is|are) said": "reported, or printed",
    r"what is more": "nothing, or: also",
    r"an own": "its own, or a separate",
    r"hence": "so",
    r"thereof": "of it",
}
"""Patterns that must not appear in prose, and what to write instead."""
_IN_PAGES_ONLY: Final = {r"of (?:its|their|one's) own": "a separate ..., or: its own ..."}
_NOT_OURS: Final = {"runs", "build", "dist", "node_modules", "corpus"}
_VAGUE_CLASS: Final = re.compile(r"\s*class (Told|Asked)\b")
"""Names of classes that make a stranger guess what they hold."""
_FENCE: Final = re.compile(r"^\s*(`{3,})(\w*)\s*$")
_CODE: Final = re.compile(r"`[^`]*`")
_QUOTED: Final = re.compile(r"\"[^\"]*\"|“[^”]*”|«[^»]*»")
_LINK: Final = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")


def pages() -> list[Path]:
    """Every Markdown file of the project."""
    return sorted(path for path in ROOT.rglob("*.md") if not any(map(_is_foreign, path.relative_to(ROOT).parts)))


def _is_foreign(name: str) -> bool:
    """Whether a folder of this name holds what others wrote, such as `.venv` and the environments of slow tests."""
    return name in _NOT_OURS or name.startswith(".venv")


def fences(lines: list[str]) -> Iterator[tuple[int, int, str]]:
    """First and last line of each fence, and its language."""
    opened: tuple[int, str, str] | None = None
    for number, line in enumerate(lines):
        if opened is None:
            if found := _FENCE.match(line):
                opened = number, found.group(1), found.group(2)
        elif line.strip() == opened[1]:
            yield opened[0], number, opened[2]
            opened = None


def links(page: Path) -> Iterator[tuple[int, str]]:
    """Line number and target of each link, code aside."""
    for number, line in _prose(page.read_text(encoding="utf-8")):
        for found in _LINK.finditer(line):
            yield number, found.group(1) or found.group(2)


def anchors(page: Path) -> set[str]:
    """Headings of a page as a code host turns them into anchors."""
    lines = page.read_text(encoding="utf-8").splitlines()
    code = {number for start, end, _ in fences(lines) for number in range(start, end + 1)}
    headings = [line.lstrip("#").strip() for n, line in enumerate(lines) if n not in code and line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def leads_somewhere(page: Path, link: str) -> bool:
    """Whether the file that a link names exists, and has the heading. Addresses of the web are not asked."""
    if "://" in link or link.startswith("mailto:"):
        return True
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return target.exists() and (not anchor or target.suffix != ".md" or anchor in anchors(target))


def broken_links(page: Path) -> Iterator[str]:
    for number, link in links(page):
        if not leads_somewhere(page, link):
            yield f"{_place(page, number)}: broken link {link}"


def dialect(path: Path) -> Iterator[str]:
    """Each place where a Markdown or Python file uses a word of the list."""
    text = path.read_text(encoding="utf-8")
    is_page = path.suffix == ".md"
    listed = {**DIALECT, **_IN_PAGES_ONLY} if is_page else DIALECT
    for number, line in _prose(text) if is_page else _words_of(text):
        for pattern, better in listed.items():
            if found := re.search(rf"\b{pattern}\b", _QUOTED.sub("", line)):
                yield f"{_place(path, number)}: “{found[0]}”; write: {better}"
    for number, line in () if is_page else enumerate(text.splitlines(), 1):
        if vague := _VAGUE_CLASS.match(line):
            yield f"{_place(path, number)}: class “{vague[1]}”; name what it holds"


def _prose(text: str) -> Iterator[tuple[int, str]]:
    lines = text.splitlines()
    code = {number for start, end, _ in fences(lines) for number in range(start, end + 1)}
    for number, line in enumerate(lines):
        if number not in code:
            yield number + 1, _CODE.sub("", line)


def _words_of(source: str) -> Iterator[tuple[int, str]]:
    """Comments, docstrings and other text that has spaces in it, line by line."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING) and " " in token.string:
            for offset, line in enumerate(token.string.strip("\"'").splitlines()):
                yield token.start[0] + offset, _CODE.sub("", line)


def _place(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}:{line}"


def problems() -> Iterator[str]:
    for page in pages():
        yield from broken_links(page)
        yield from dialect(page)
    for source in sorted((ROOT / "src").rglob("*.py")):
        yield from dialect(source)


def main() -> None:
    found = list(problems())
    if found:
        sys.exit("\n".join([*found, f"{len(found)} to fix in documentation and messages"]))


if __name__ == "__main__":
    main()
