"""Finds out what a file contains: our trajectories, AFM's SFT rows, or task rows."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Final

import orjson

from coa.errors import StoreError
from coa.report import plural
from coa.trajectory.formats.alpaca import defect_of, from_alpaca, is_alpaca
from coa.trajectory.formats.rows import Row, read_rows
from coa.trajectory.formats.sources import files
from coa.trajectory.formats.tasks import to_task
from coa.trajectory.profile import Profile
from coa.trajectory.store import find, is_trajectory_parquet, parsed, read
from coa.trajectory.types import Trajectory

log = logging.getLogger(__name__)
_HINT: Final = "rows need at least `question` (a task) or `instruction`, `input`, `output` (a trajectory as text)"


class Content(StrEnum):
    TRAJECTORIES = "trajectories"
    ALPACA = "alpaca"
    TASKS = "tasks"


def detect(path: str | Path) -> Content:
    path = find(path)
    if path.suffix == ".parquet" and is_trajectory_parquet(path):
        return Content.TRAJECTORIES
    first: Row | None = None
    defects: Counter[str] = Counter()
    # The first row may be malformed.
    for row in read_rows(path, defects):
        if (content := _content(row)) is not None:
            return content
        first = first or row
    if first is None and not defects:
        raise StoreError(f"{path} holds no row: it is empty, or its only line is not valid JSON", hint=_HINT)
    found = f"its first row has the fields {sorted(first)}" if first else f"its rows are {' or '.join(sorted(defects))}"
    message = f"{path} holds neither trajectories, nor instruction/input/output rows, nor tasks; {found}"
    raise StoreError(message, hint=_HINT)


def _content(row: Row) -> Content | None:
    if "schema_version" in row or {"task", "profile", "steps"} <= set(row):
        return Content.TRAJECTORIES
    if is_alpaca(row):
        return Content.ALPACA
    try:
        to_task(row)
    except (ValueError, TypeError, KeyError, AttributeError):  # rows of any shape
        return None
    return Content.TASKS


def holds_tasks(source: str) -> bool:
    """Whether a file, a folder or a hub id contains tasks. Of several files the first one decides."""
    return detect(files(source)[0]) is Content.TASKS


def trajectories_of(
    source: str, profile: Profile | None = None, defects: Counter[str] | None = None
) -> Iterator[Trajectory]:
    """As `read_trajectories`, for a file, a folder or a hub id."""
    for file in files(source):
        yield from read_trajectories(file, profile, defects)


def read_trajectories(
    path: str | Path, profile: Profile | None = None, defects: Counter[str] | None = None
) -> Iterator[Trajectory]:
    """Trajectories of our files and of AFM rows. Tagged text is read with `profile`, or with the one that fits best.

    Published rows have defects. Rows without a trajectory are skipped and counted in `defects` by kind, or reported in
    a warning. Our own files have no defects, so there an invalid record is an error.
    """
    path = find(path)
    match detect(path):
        case Content.TRAJECTORIES:
            yield from _json_list(path) if path.suffix == ".json" else read(path)
        case Content.ALPACA:
            yield from _alpaca(path, profile, defects)
        case Content.TASKS:
            raise StoreError(
                f"{path} holds tasks, not trajectories",
                hint=f"make trajectories of them: coa run --tasks {path} --out runs/; or export them with --to tasks",
            )


def _alpaca(path: Path, profile: Profile | None, defects: Counter[str] | None) -> Iterator[Trajectory]:
    found: Counter[str] = Counter()
    usable = 0
    for row in read_rows(path, found):
        if (defect := defect_of(row)) is not None:
            found[defect] += 1
            continue
        usable += 1
        yield from_alpaca(row, profile)
    if not usable:
        raise StoreError(f"{path} holds no usable row: {by_kind(found)}", hint=_HINT)
    if defects is not None:
        defects.update(found)
    elif found:
        log.warning("%s: %s left out: %s", path, plural(found.total(), "row"), by_kind(found))


def by_kind(counts: Counter[str]) -> str:
    """Kinds with their counts, the most frequent first."""
    return ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _json_list(path: Path) -> Iterator[Trajectory]:
    for number, row in enumerate(read_rows(path), start=1):
        yield parsed(orjson.dumps(row), f"{path}, row {number}")
