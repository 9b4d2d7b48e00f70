"""What a file holds, whoever wrote it: trajectories of ours, AFM's SFT rows, or task rows."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import orjson

from coa.errors import StoreError
from coa.trajectory.formats.alpaca import from_alpaca, is_alpaca
from coa.trajectory.formats.rows import first_row, read_rows
from coa.trajectory.formats.tasks import to_task
from coa.trajectory.profile import Profile
from coa.trajectory.store import find, is_trajectory_parquet, parsed, read
from coa.trajectory.types import Trajectory


class Content(StrEnum):
    TRAJECTORIES = "trajectories"
    ALPACA = "alpaca"
    TASKS = "tasks"


def detect(path: str | Path) -> Content:
    path = find(path)
    if path.suffix == ".parquet" and is_trajectory_parquet(path):
        return Content.TRAJECTORIES
    row = first_row(path)
    if "schema_version" in row or {"task", "profile", "steps"} <= set(row):
        return Content.TRAJECTORIES
    if is_alpaca(row):
        return Content.ALPACA
    try:
        to_task(row)
    except ValueError as error:
        raise StoreError(
            f"{path} holds neither trajectories, nor instruction/input/output rows, nor tasks; "
            f"its first row has the fields {sorted(row)}",
            cure="rows need at least `question` (a task) or `instruction`, `input`, `output` (a trajectory as text)",
        ) from error
    return Content.TASKS


def read_trajectories(path: str | Path, profile: Profile | None = None) -> Iterator[Trajectory]:
    """Trajectories of a file of either shape. `profile` says how to read tagged text; without it the tags tell."""
    path = find(path)
    match detect(path):
        case Content.TRAJECTORIES:
            yield from _json_list(path) if path.suffix == ".json" else read(path)
        case Content.ALPACA:
            for number, row in enumerate(read_rows(path), start=1):
                if not is_alpaca(row):
                    raise StoreError(
                        f"{path}, row {number} has the fields {sorted(row)}, not instruction, input, output",
                        cure="mend or remove it; `coa distill` skips and counts such rows",
                    )
                yield from_alpaca(row, profile)
        case Content.TASKS:
            raise StoreError(f"{path} holds tasks, not trajectories")


def _json_list(path: Path) -> Iterator[Trajectory]:
    for number, row in enumerate(read_rows(path), start=1):
        yield parsed(orjson.dumps(row), f"{path}, row {number}")
