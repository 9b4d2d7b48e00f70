"""Runs in files of traces, numbered as the viewer's index numbers them, and one of them again by its number."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from coa.distill.importers.detect import read_traces
from coa.distill.importers.trace_format import Imported
from coa.distill.team_run import Skipped, TeamRun
from coa.errors import CoaError, StoreError
from coa.trajectory import Profile, Trajectory, load_profile

MOST_CACHED: Final = 8 << 20
"""Bytes of files whose runs are kept. Read, a trace takes several times its size."""
_PACKED: Final = 10
"""Factor by which compressed files are assumed to grow."""
_DEFAULT_PROFILE: Final = "web"

_Key = tuple[tuple[str, int, int], ...]
"""Path, time of the last change and size of each file."""


def team_runs_in(files: Sequence[Path]) -> Iterator[tuple[int, Imported]]:
    """Everything that the files of one source hold, in order, with its number. What cannot be read has a number too."""
    yield from enumerate(read_traces(files))


def open_team_run(files: Sequence[Path], number: int) -> TeamRun | Trajectory:
    """The run with this number. Raises `StoreError` if it is not there any more, or cannot be read any more."""
    try:
        found = _cache.item(files, number)
    except OSError as error:
        raise StoreError(f"{files[0]} cannot be read any more: {error.strerror or error}") from error
    if found is None:
        raise StoreError(f"{files[0]} has no run number {number + 1} any more")
    if isinstance(found, Skipped):
        raise StoreError(f"{found.file} {found.place}".strip() + f" cannot be read: {found.reason}")
    return found


def profile_for(team_run: TeamRun) -> Profile:
    """The profile that a distillation would take: the one that the task names, if it is there, or `web`."""
    try:
        return load_profile(team_run.task.profile or _DEFAULT_PROFILE)
    except CoaError:  # a trace may name anything
        return load_profile(_DEFAULT_PROFILE)


class _Cache:
    """The runs of the files that were read last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[_Key, tuple[int, list[Imported]]] = OrderedDict()
        self._lock = threading.Lock()

    def item(self, files: Sequence[Path], number: int) -> Imported | None:
        key = tuple((str(file), (about := file.stat()).st_mtime_ns, about.st_size) for file in files)
        with self._lock:
            known = self._kept.get(key)
            if known is not None:
                self._kept.move_to_end(key)
        if known is None:
            size = sum(size * (_PACKED if name.endswith((".gz", ".eval")) else 1) for name, _, size in key)
            if size > MOST_CACHED:
                return next(islice(read_traces(files), number, None), None)
            known = (size, list(read_traces(files)))
            self._keep(key, known)
        return known[1][number] if number < len(known[1]) else None

    def _keep(self, key: _Key, read: tuple[int, list[Imported]]) -> None:
        with self._lock:
            self._kept[key] = read
            while sum(size for size, _ in self._kept.values()) > MOST_CACHED:
                self._kept.popitem(last=False)


_cache: Final = _Cache()
