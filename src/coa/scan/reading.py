"""Runs with the file and the number that make up their id, read so that damage is named and does not stop the scan.

Records are numbered as the viewer numbers them: a record that cannot be read has a number too, a blank line has none,
and runs that are scattered over several files belong to the folder above these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import orjson

from coa.distill.find_runs import FoundRuns, as_trajectory, find_runs
from coa.distill.importers.detect import FORMATS, read_traces
from coa.distill.team_run import Skipped
from coa.errors import CoaError, SchemaVersionError, StoreError
from coa.trajectory import Profile, Trajectory, load_profile
from coa.trajectory.definitions import definition, remember
from coa.trajectory.formats.alpaca import defect_of, from_alpaca
from coa.trajectory.formats.detect import Content, detect
from coa.trajectory.formats.rows import read_rows
from coa.trajectory.identity import run_id
from coa.trajectory.store import from_row, parsed
from coa.trajectory.store.jsonl import read_lines
from coa.trajectory.store.parquet import parquet_rows


class FoundRun(NamedTuple):
    file: Path
    number: int
    """Number of the record in the file, from 0."""
    trajectory: Trajectory

    @property
    def id(self) -> str:
        return run_id(self.file, self.number)


class Problem(NamedTuple):
    """Something that should have been a run and could not be read."""

    file: str
    message: str


class RunSource:
    """All runs at some paths, with a count of the files for whoever shows how far reading has come."""

    def __init__(self, paths: Sequence[str | Path], profile: str | None = None) -> None:
        self._profile = load_profile(profile) if profile else None
        self._early: list[Problem] = []
        self._parts: list[FoundRuns] = []
        for path in paths:
            self._find(str(path))
        self.files = len({file.resolve() for part in self._parts for file in part.files})
        self.files_begun = 0

    def _find(self, path: str) -> None:
        def note(file: Path, error: StoreError) -> None:
            self._early.append(Problem(str(file), error.message))

        try:
            found = find_runs(path, self._profile, damaged=note)
        except StoreError as error:
            if not Path(path).exists():
                raise
            note(Path(path), error)
            return
        if not found:
            self._early.append(Problem(path, "it holds tasks and no runs"))
        self._parts += found

    def __iter__(self) -> Iterator[FoundRun | Problem]:
        yield from self._early
        seen: set[Path] = set()
        scattered: dict[Path, list[Path]] = {}
        for part in self._parts:
            for file in part.files:
                if (place := file.resolve()) in seen:
                    continue
                seen.add(place)
                if part.team and _is_scattered(file):
                    scattered.setdefault(file.parent.parent, []).append(file)
                    continue
                self.files_begun += 1
                yield from _team(file, [file], self._profile) if part.team else _own(file, self._profile)
        for folder, files in scattered.items():
            self.files_begun += len(files)
            yield from _team(folder, files, self._profile)


def _is_scattered(file: Path) -> bool:
    """Whether it is one of several files over which a run is scattered."""
    return any(known.file_names is not None and known.file_names.fullmatch(file.name) for known in FORMATS)


def _own(file: Path, profile: Profile | None) -> Iterator[FoundRun | Problem]:
    """Trajectories of our own files, and rows of AFM."""
    try:
        own = detect(file) is Content.TRAJECTORIES
        if file.suffix == ".parquet":
            rows = parquet_rows(file)
            yield from _each(file, ((f"row {number}", row) for number, row in enumerate(rows, 1)), own, profile)
        elif file.suffix == ".jsonl":
            torn: list[int] = []
            lines = ((f"line {number}", line) for number, line in read_lines(file, torn.append))
            yield from _each(file, lines, own, profile)
            yield from (Problem(str(file), f"line {number} is torn: it was not completely written") for number in torn)
        else:
            listed = ((f"row {number}", orjson.dumps(row)) for number, row in enumerate(read_rows(file), 1))
            yield from _each(file, listed, own, profile)
    except CoaError as error:
        yield Problem(str(file), error.message)
    except OSError as error:
        yield Problem(str(file), f"it cannot be read: {error.strerror or error}")


def _each(
    file: Path, records: Iterator[tuple[str, dict[str, object] | bytes]], own: bool, profile: Profile | None
) -> Iterator[FoundRun | Problem]:
    searched = False
    for number, (place, record) in enumerate(records):
        try:
            trajectory = _trajectory(record, own, profile)
        except CoaError as error:
            yield Problem(str(file), f"{place}: {error.message}")
            continue
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            yield Problem(str(file), f"{place} is not a trajectory: {error}")
            continue
        if trajectory.profile_hash is not None and definition(trajectory.profile_hash) is None and not searched:
            searched = True  # the file was sorted or shuffled, and the definition comes later
            _remember_definitions(file)
        yield FoundRun(file, number, trajectory)


def _trajectory(record: dict[str, object] | bytes, own: bool, profile: Profile | None) -> Trajectory:
    if own:
        return _parsed(record) if isinstance(record, bytes) else from_row(record)
    row = orjson.loads(record) if isinstance(record, bytes) else record
    if not isinstance(row, dict):
        raise StoreError("it is not an object")
    if (defect := defect_of(row)) is not None:
        raise StoreError(f"it holds no trajectory: {defect}")
    return from_alpaca(row, profile)


def _parsed(line: bytes) -> Trajectory:
    try:
        return parsed(line, "it")
    except SchemaVersionError as error:  # whose message is a sentence of its own behind the place
        raise SchemaVersionError(error.message.removeprefix("it: "), hint=error.hint) from error


def _remember_definitions(file: Path) -> None:
    if file.suffix == ".jsonl":
        for _, line in read_lines(file, lambda number: None):
            if b'"profile_definition"' in line:
                try:
                    row = orjson.loads(line)
                except orjson.JSONDecodeError:
                    continue
                if isinstance(row, dict) and isinstance(text := row.get("profile_definition"), str):
                    remember(text)


def _team(path: Path, files: list[Path], profile: Profile | None) -> Iterator[FoundRun | Problem]:
    """Runs of teams as the trajectories that `coa distill` would make of them."""
    for number, item in enumerate(read_traces(files)):
        if isinstance(item, Skipped):
            yield Problem(item.file, f"{item.place}: {item.reason}" if item.place else item.reason)
            continue
        try:
            yield FoundRun(path, number, as_trajectory(item, profile))
        except CoaError as error:
            yield Problem(str(path), f"run {number + 1}: {error.message}")
