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
from coa.trajectory.formats.own_rows import is_trajectory
from coa.trajectory.store import from_row
from coa.trajectory.types import FrozenDict, Trajectory


def is_afm(row: object) -> bool:
    return isinstance(row, Mapping) and is_alpaca(row)


def from_afm(row: Mapping[str, Any], file: str = "", place: str = "") -> Trajectory:
    trajectory = from_alpaca(row)
    # Without folders: data sets are shared, and folders belong to this machine.
    source = {"format": AFM.name, "file": PurePath(file).name, "place": place}
    return trajectory.model_copy(update={"meta": FrozenDict({**trajectory.meta, "source": source})})


def from_trajectory_row(value: Mapping[str, Any], file: str = "", place: str = "") -> Trajectory:
    # Parquet keeps trajectories in several columns, the task as JSON text.
    return from_row(dict(value)) if isinstance(value["task"], str) else Trajectory.model_validate(value)


AFM: Final = TraceFormat("afm", "AFM rows", is_afm, read=from_afm)
OWN: Final = TraceFormat("trajectory", "trajectories", is_trajectory, read=from_trajectory_row)
