"""The runs under a path: one file, or a tree of them (a demo, a training run), file by file, as `coa inspect` shows.

What reads the traces of teams is imported only where there are some: importing it takes longer than showing a few runs.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import JsonValue

from coa.distill.run_files import ARCHIVE, ATIF, CALLS
from coa.errors import StoreError
from coa.trajectory import Profile, Trajectory, load_profile
from coa.trajectory.formats.detect import Content, detect, holds_tasks, read_trajectories, trajectories_of
from coa.trajectory.formats.own_rows import begins_plainly_own
from coa.trajectory.formats.sources import ENDINGS, is_data, is_hidden
from coa.trajectory.formats.sources import files as files_of
from coa.trajectory.store import NAMES, OWN_FILES
from coa.trajectory.types import FrozenDict

if TYPE_CHECKING:
    from coa.distill.team_run import TeamRun

log = logging.getLogger(__name__)
_ENDINGS: Final = (ATIF, CALLS)
"""Of what `coa teach` and `coa record` write."""
_DATA: Final = (*ENDINGS, ".ndjson", ".otlp", ".gz", ARCHIVE)
HANDOVERS: Final = "handovers"
"""In the meta of what is shown of a team's run: who asked whom, and what came of it. Training data go without."""


@dataclass(frozen=True, slots=True)
class FoundRuns:
    """One file of trajectories, or one folder of a team's traces."""

    name: str
    """Its path below the tree; empty if the source is no tree."""
    read: Callable[[], Iterator[Trajectory]]
    files: tuple[Path, ...] = ()
    """What it reads, in order."""
    team: bool = False
    """Whether these are traces of a team, which become trajectories as they are read."""

    @property
    def place(self) -> str:
        """The file, or the folder of the traces."""
        return self.name.partition("*")[0]


def find_runs(
    source: str, profile: Profile | None = None, *, damaged: Callable[[Path, StoreError], None] | None = None
) -> list[FoundRuns]:
    """In order of their paths; empty where there are only tasks. Worlds, weights and reports in a tree are skipped.

    Runs of teams become trajectories of `profile`, or of the profile that their task names. `damaged` hears of files in
    a tree that have the name of a trajectory file and cannot be read; they are skipped.
    """
    path = Path(source)
    named = any((path / name).is_file() for name in NAMES)
    if path.is_file() and (path.name.endswith(_ENDINGS) or _is_of_team(path)):
        return [_of_team("", [path], profile)]
    tree = path.is_dir() and not named
    if tree and (found := list(_below(path, profile, damaged))):
        traces = _traces(path)
        # A folder of nothing but recorded runs is one source, not a tree.
        if len(found) == len(traces):
            return [_of_team("", [file for files in traces.values() for file in files], profile)]
        return found
    if holds_tasks(source):
        return []
    return [FoundRuns("", partial(trajectories_of, source, profile), tuple(files_of(source)))]


def as_trajectory(item: TeamRun | Trajectory, profile: Profile | None = None) -> Trajectory:
    """A run of a team as the trajectory that `coa distill` would make of it; a trajectory stays as it is."""
    if isinstance(item, Trajectory):
        return item
    from coa.distill.convert import convert
    from coa.distill.handovers import handovers_of

    made = convert(item, profile or load_profile(item.task.profile or "web"))
    asked: list[JsonValue] = [str(one) for one in handovers_of(item.root)]
    return made.model_copy(update={"meta": FrozenDict({**made.meta, HANDOVERS: asked})}) if asked else made


def _is_of_team(path: Path) -> bool:
    if begins_plainly_own(path):
        return False
    from coa.distill.importers.detect import is_team_trace

    return is_team_trace(path)


def _of_team(name: str, files: list[Path], profile: Profile | None) -> FoundRuns:
    return FoundRuns(name, partial(_team_runs, files, profile), tuple(files), team=True)


def _below(
    tree: Path, profile: Profile | None, damaged: Callable[[Path, StoreError], None] | None
) -> Iterator[FoundRuns]:
    for folder in (tree, *sorted(path for path in tree.rglob("*") if path.is_dir() and not is_hidden(path, tree))):
        for ending, files in _traces(folder).items():
            yield _of_team(f"{folder.relative_to(tree)}/*{ending}", files, profile)
        if next(folder.glob("*.safetensors"), None) is not None:
            continue  # a model: its tokenizer is a large JSON file and no run
        for file in sorted(folder.iterdir()):
            if file.name.endswith(_ENDINGS) or file.name in OWN_FILES or file.suffix not in _DATA or not file.is_file():
                continue
            if _is_of_team(file):
                yield _of_team(str(file.relative_to(tree)), [file], profile)
            elif is_data(file) and _holds_runs(file, damaged):
                yield FoundRuns(str(file.relative_to(tree)), partial(read_trajectories, file, profile), (file,))


def _traces(folder: Path) -> dict[str, list[Path]]:
    """The traces right in a folder, by their ending."""
    found = {ending: sorted(folder.glob(f"*{ending}")) for ending in _ENDINGS} if folder.is_dir() else {}
    return {ending: files for ending, files in found.items() if files}


def _holds_runs(file: Path, damaged: Callable[[Path, StoreError], None] | None) -> bool:
    try:
        return detect(file) is not Content.TASKS
    except StoreError as error:
        if damaged is not None and file.name in NAMES and file.stat().st_size:
            damaged(file, error)
        return False


def _team_runs(files: list[Path], profile: Profile | None) -> Iterator[Trajectory]:
    from coa.distill.importers.detect import read_traces
    from coa.distill.team_run import Skipped

    left_out: Counter[tuple[str, str]] = Counter()
    try:
        for item in read_traces(files):
            if isinstance(item, Skipped):
                left_out[item.file, item.reason] += 1
            else:
                yield as_trajectory(item, profile)
    finally:  # also if nobody wants to read further
        for (file, reason), count in left_out.items():
            log.warning("%s: %s: %s", file, "left out" if count == 1 else f"left out {count:,} times", reason)
