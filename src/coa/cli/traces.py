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

    return read_traces(sorted(set(paths)))
