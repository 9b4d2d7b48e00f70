"""Data sources: a file, a folder, or a data set on the hub, written as `owner/name` or `owner/name:part`."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from coa import hub
from coa.errors import StoreError, nothing_at
from coa.trajectory.formats.hub import hub_files
from coa.trajectory.store import NAMES, OWN_FILES, is_twin

ENDINGS: Final = (".jsonl", ".json", ".parquet")


def files(source: str) -> list[Path]:
    """The data files at a path or of a hub id. Files of the hub are downloaded once and cached."""
    path = Path(source)
    if path.is_file():
        return [path]
    if path.is_dir():
        named = [path / name for name in NAMES if (path / name).is_file()]
        found = named[:1] or sorted(file for file in path.rglob("*") if is_data(file) and not is_hidden(file, path))
        if not found:
            raise StoreError(
                f"the folder {path} holds no .jsonl, .json or .parquet file",
                hint="give a folder with trajectories, traces or tasks, or the file itself",
            )
        return found
    name, _, part = source.partition(":")
    if name.count("/") != 1 or hub.is_path(name, "dataset"):
        raise nothing_at(source)
    return _from_hub(name, part)


def not_empty(sources: Sequence[str]) -> list[str]:
    """Of several sources, those that hold something: a shard may have no task, and the file of its runs is empty."""
    several = list(dict.fromkeys(sources))
    return [source for source in several if not _is_empty(Path(source))] or several[:1]


def _is_empty(path: Path) -> bool:
    file = path / NAMES[0] if path.is_dir() else path
    return file.is_file() and not file.stat().st_size


def is_hidden(path: Path, tree: Path) -> bool:
    """Whether a path below a folder is hidden or in a hidden folder, such as that of the live feed."""
    return any(part.startswith(".") for part in path.relative_to(tree).parts)


def is_data(file: Path) -> bool:
    """Whether a file may contain data. Our own reports and second copies do not."""
    known = file.suffix in ENDINGS and file.name not in OWN_FILES and not file.name.startswith(".")
    return known and file.is_file() and not is_twin(file)


def _from_hub(name: str, part: str) -> list[Path]:
    listed: list[str] = []

    def wanted(paths: list[str]) -> list[str]:
        listed[:] = [path for path in paths if path.endswith(ENDINGS)]
        return [path for path in listed if _belongs(path, part)]

    try:
        found = hub_files(name, wanted)
    except StoreError as error:  # a misspelled path looks like a name on the hub
        raise StoreError(f"there is no file or folder {name}, and {error.message}", hint=error.hint) from error
    if listed and not found:
        raise StoreError(f"the data set {name!r} has no {part!r}", hint=f"its data files are {', '.join(listed[:20])}")
    if not found:
        raise StoreError(f"the data set {name!r} holds no .jsonl, .json or .parquet file")
    return found


def _belongs(file: str, part: str) -> bool:
    """Whether a file belongs to a part: a file, a folder, or a pattern such as `data/train-*`."""
    return not part or file == part or file.startswith(part.rstrip("/") + "/") or fnmatch(file, part)
