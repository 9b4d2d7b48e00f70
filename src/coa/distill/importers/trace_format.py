"""What a trace format is: how its values are recognised, and how they are read.

A new format is one file beside this one, which declares a `TraceFormat`, and one line in `FORMATS` in `detect.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coa.distill.team_run import Skipped, TeamRun
from coa.trajectory.types import Trajectory

Imported = TeamRun | Trajectory | Skipped


@dataclass(frozen=True, slots=True)
class TraceFormat:
    name: str
    """The name in a run's `source.format` and in the report."""
    description: str
    """For messages that list what can be read."""
    matches: Callable[[object], bool]
    """Whether a JSON value, such as a row of a file, is a trace of this format. It may raise `json_files.FAULTS`."""
    read: Callable[[Any, str, str], TeamRun | Trajectory] | None = None
    """The run that one value holds; the file and the place in it are for the run's `source`."""
    read_file: Callable[[Path], Iterator[Imported]] | None = None
    """For formats that scatter a run over many values: all runs of a file."""
    takes_lists: bool = False
    """Whether a list as a whole can be one trace; for other formats, the items of a list are traces."""
    file_names: re.Pattern[str] | None = None
    """For formats that scatter a run over many files: the names of these files."""
    read_files: Callable[[Sequence[Path]], Iterator[Imported]] | None = None
    """All runs of the files by these names below one folder, which may keep them in subfolders."""
