"""Hooks of the documentation site: files outside `docs/` that a page links to become pages under `repository/`.

On a code host, a link such as `../../configs/rl/web-7b.toml` opens the file. The site is built from `docs/` alone, so
each such file is added to it: Markdown unchanged, a folder as the list of its files, anything else as a block of code.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File, Files

ROOT: Final = Path(__file__).resolve().parents[1]
PLACE: Final = "repository"
ALWAYS: Final = ("CONTRIBUTING.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "SECURITY.md")
"""In the navigation, whether a page links to them or not."""
_UNSEARCHED: Final = "---\nsearch: {exclude: true}\n---\n\n"
"""At the top of files of code, which would fill the results of every search."""
_LINK: Final = re.compile(r"(?<=\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")
_LANGUAGES: Final = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".sh": "sh"}


def on_files(files: Files, config: Any) -> Files:
    """Add what the pages link to, and what those pages link to in turn."""
    waiting = [ROOT / name for name in ALWAYS if (ROOT / name).is_file()]
    for file in files.documentation_pages():
        waiting += _outside(Path(config.docs_dir) / file.src_uri)
    added: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path not in added:
            added.add(path)
            files.append(File.generated(config, _name(path), content=_content(path)))
            waiting += _outside(path) if path.suffix == ".md" else ()
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Let links out of `docs/` lead to the pages made of their targets."""
    written_at = _origin(page.file.src_uri, Path(config.docs_dir))
    from_uri = os.path.dirname(page.file.src_uri)

    def moved(found: re.Match[str]) -> str:
        target = _target(written_at, found[1])
        if target is None:
            return found[0]
        inside = _is_in(target, Path(config.docs_dir))
        uri = target.relative_to(config.docs_dir).as_posix() if inside else _name(target)
        return os.path.relpath(uri, from_uri or ".") + (found[2] or "")

    return _LINK.sub(moved, markdown)


def _origin(uri: str, docs: Path) -> Path:
    """Where the text of a page was written: pages under `repository/` come from outside."""
    inside, _, rest = uri.partition("/")
    return ROOT / rest if inside == PLACE else docs / uri


def _outside(page: Path) -> Iterator[Path]:
    for found in _LINK.finditer(page.read_text(encoding="utf-8")):
        target = _target(page, found[1])
        if target is not None and not _is_in(target, ROOT / "docs"):
            yield target


def _target(page: Path, link: str) -> Path | None:
    """The file of the repository that a relative link names, if there is one."""
    if ":" in link or link.startswith("/"):
        return None
    target = Path(os.path.normpath(page.parent / link))
    return target if target.exists() and _is_in(target, ROOT) else None


def _is_in(path: Path, folder: Path) -> bool:
    return path.is_relative_to(folder)


def _name(path: Path) -> str:
    relative = path.relative_to(ROOT).as_posix()
    return f"{PLACE}/{relative}" if path.suffix in {".md", ".png", ".svg"} else f"{PLACE}/{relative}.md"


def _content(path: Path) -> str | bytes:
    title = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        listed = subprocess.run(["git", "ls-files", "."], cwd=path, capture_output=True, text=True, check=True)
        return f"{_UNSEARCHED}# {title}\n\n" + "\n".join(f"- `{name}`" for name in listed.stdout.splitlines()) + "\n"
    if path.suffix in {".png", ".svg"}:
        return path.read_bytes()
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    return f"{_UNSEARCHED}# {title}\n\n````{_LANGUAGES.get(path.suffix, '')}\n{text.rstrip()}\n````\n"
