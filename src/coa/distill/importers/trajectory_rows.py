"""Rows that already are one model's trajectory: ours, from JSONL or Parquet, and AFM's SFT rows.

They need no conversion and go to the filters beside the trajectories that were converted from teams. The tags in AFM's
rows (`instruction`, `input`, `output`) are read by `trajectory/formats/alpaca.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final

from coa.distill.importers.trace_format import TraceFormat
from coa.trajectory.formats.alpaca import from_alpaca, is_alpaca
from coa.trajectory.store import from_row
from coa.trajectory.types import FrozenDict, Trajectory

_FIELDS: Final = frozenset({*Trajectory.model_fields, "profile_definition"})


def is_afm(row: object) -> bool:
    return isinstance(row, Mapping) and is_alpaca(row)


def from_afm(row: Mapping[str, Any], file: str = "", place: str = "") -> Trajectory:
    trajectory = from_alpaca(row)
    # Without folders: data sets are shared, and folders belong to this machine.
    source = {"format": AFM.name, "file": PurePath(file).name, "place": place}
    return trajectory.model_copy(update={"meta": FrozenDict({**trajectory.meta, "source": source})})


def is_trajectory(value: object) -> bool:
    """A run that broke before its first step is written without `steps`, and is a trajectory too."""
    if not isinstance(value, Mapping):
        return False
    return "task" in value and "profile" in value and ("steps" in value or "schema_version" in value)


def is_plainly_own(value: object) -> bool:
    """Whether all fields are those of our own records. Every other format has a field that they lack, so a large file
    of trajectories need not be compared with each format, row by row."""
    return type(value) is dict and value.keys() <= _FIELDS and is_trajectory(value)


def from_trajectory_row(value: Mapping[str, Any], file: str = "", place: str = "") -> Trajectory:
    # Parquet keeps trajectories in several columns, the task as JSON text.
    return from_row(dict(value)) if isinstance(value["task"], str) else Trajectory.model_validate(value)


AFM: Final = TraceFormat("afm", "AFM rows", is_afm, read=from_afm)
OWN: Final = TraceFormat("trajectory", "trajectories", is_trajectory, read=from_trajectory_row)
