"""Rows that already are trajectories in our own form, from JSONL or Parquet: they need no conversion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from coa.distill.importers.trace_format import TraceFormat
from coa.trajectory.store import from_row
from coa.trajectory.types import Trajectory


def is_trajectory(value: object) -> bool:
    """One that broke before its first step is written without `steps`, and is a run all the same."""
    return (
        isinstance(value, Mapping)
        and {"task", "profile"} <= set(value)
        and not {"steps", "schema_version"}.isdisjoint(value)
    )


def from_trajectory_row(value: Mapping[str, Any], file: str = "", place: str = "") -> Trajectory:
    # Parquet keeps trajectories in several columns, the task as JSON text.
    return from_row(dict(value)) if isinstance(value["task"], str) else Trajectory.model_validate(value)


FORMAT: Final = TraceFormat("trajectory", "trajectories", is_trajectory, read=from_trajectory_row)
