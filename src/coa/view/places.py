"""What is viewed, and where its index is: both are checked before anything is opened."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coa.errors import ConfigError, nothing_at
from coa.view.index import cache_file


def existing(paths: Sequence[str | Path]) -> list[Path]:
    """These files and folders; the first that does not exist is an error."""
    found = [Path(path) for path in paths]
    for path in found:
        if not path.exists():
            raise nothing_at(path)
    return found


def index_file(roots: Sequence[Path], cache: str | Path | None) -> Path:
    """The file of the index, in the folder `cache` or else in the cache folder of the user."""
    folder = Path(cache) if cache is not None else None
    if folder is not None and folder.exists() and not folder.is_dir():
        raise ConfigError(f"the cache must be a folder, and {folder} is a file", hint="name a folder with --cache")
    return cache_file(roots, folder)
