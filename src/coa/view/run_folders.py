"""Which folders are shown, and what stage made each: by its `config.json` and by the files in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from coa.folder import CONFIG
from coa.trajectory.store import NAMES

_MARKS: Final = (CONFIG, "demo.json", "metrics.jsonl", "report.json", "runs.sqlite", *NAMES)
"""A folder with one of these is the folder of a run. The first that decides its kind counts."""
_SKIPPED: Final = ("world", "pages", "index", "node_modules", "__pycache__")


class RunFolder(NamedTuple):
    path: Path
    kind: str
    updated: float
    """Time of the newest of its own files, in seconds since the epoch."""


def folder_of(file: Path) -> Path:
    """The run folder that a file belongs to. Groups of RL are in a folder of their own inside it."""
    parent = file if file.is_dir() else file.parent
    if parent.name == "groups" and (parent.parent / CONFIG).is_file():
        return parent.parent
    return parent


def find_run_folders(root: Path) -> Iterator[RunFolder]:
    """The run folders at and below a folder, those of models and worlds left out."""
    if root.is_file():
        return
    for place, below, names in os.walk(root, followlinks=False):
        below[:] = sorted(name for name in below if not name.startswith(".") and name not in _SKIPPED)
        if any(name in names for name in _MARKS):
            folder = Path(place)
            if (kind := kind_of(folder, set(names))) is not None:
                yield RunFolder(folder, kind, updated(folder, names))


def kind_of(folder: Path, names: set[str]) -> str | None:
    """The stage that made the folder; None for what is no run, such as the folder of a model."""
    if "demo.json" in names:
        return "demo"
    if "runs.sqlite" in names:
        return "serve"
    if CONFIG in names:
        stage = _json(folder / CONFIG).get("stage")
        if isinstance(stage, str):
            return stage
    if "report.json" in names:
        found = _json(folder / "report.json")
        if "pairs" in found and "runs" in found:
            return "compare"
    if any(name in names for name in NAMES):
        return "run"
    return "training" if "metrics.jsonl" in names else None


def scorer_of(folder: Path) -> str | None:
    """The scorer that decides in an evaluation."""
    scorer = _json(folder / CONFIG).get("scorer")
    return scorer if isinstance(scorer, str) else None


def updated(folder: Path, names: list[str]) -> float:
    newest = 0.0
    for name in names:
        if name.endswith((".json", ".jsonl", ".parquet", ".sqlite")):
            try:
                newest = max(newest, (folder / name).stat().st_mtime)
            except OSError:
                continue
    return newest


def _json(path: Path) -> dict[str, object]:
    try:
        found = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return found if isinstance(found, dict) else {}
