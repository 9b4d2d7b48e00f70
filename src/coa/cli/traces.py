"""Traces of unknown origin for commands that read them: team runs, or trajectories that need no conversion."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coa.distill.team_run import Skipped, TeamRun
    from coa.trajectory import Trajectory


def read_anything(paths: Iterable[Path]) -> Iterator[TeamRun | Trajectory | Skipped]:
    """What files and folders hold, whatever order they were given in."""
    from coa.distill.importers.detect import read_traces
    from coa.trajectory import read

    for path in sorted(set(paths)):
        # A run folder holds its trajectories twice, and Parquet keeps them in columns of its own.
        yield from read(path) if _is_own(path) else read_traces([path])


def _is_own(path: Path) -> bool:
    from coa.errors import StoreError
    from coa.trajectory.store import NAMES, is_trajectory_parquet

    if path.is_dir():
        return any((path / name).is_file() for name in NAMES)
    try:
        return path.suffix == ".parquet" and path.is_file() and is_trajectory_parquet(path)
    except StoreError:
        return False
