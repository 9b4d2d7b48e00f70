"""Traces of unknown origin: the content of a file, not its name, says which importer reads it.

Files are read one after another, and runs are yielded as they are read. What cannot be read is yielded as `Skipped`,
with the file, the place in it and the reason. The content of a file never raises an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from coa.distill.handovers import with_handovers
from coa.distill.importers import (
    adk_session,
    atif_reader,
    autogen_messages,
    camel,
    chat,
    claude_sessions,
    inspect_logs,
    oagents,
    observed_traces,
    openai_agents,
    otlp,
    smolagents,
    trajectory_rows,
)
from coa.distill.importers.calls import reader as calls
from coa.distill.importers.json_files import FAULTS, Bad, reason_of, values
from coa.distill.importers.trace_format import Imported, TraceFormat
from coa.distill.run_files import ARCHIVE
from coa.distill.team_run import Skipped, TeamRun
from coa.errors import CoaError, nothing_at
from coa.trajectory.formats.own_rows import is_plainly_own
from coa.trajectory.formats.rows import read_rows
from coa.trajectory.store import NAMES, OWN_FILES, is_twin

FORMATS: Final = (
    calls.FORMAT,
    camel.FORMAT,
    otlp.FORMAT,
    openai_agents.FORMAT,
    adk_session.FORMAT,
    autogen_messages.FORMAT,
    smolagents.FORMAT,
    atif_reader.FORMAT,
    oagents.FORMAT,
    inspect_logs.FORMAT,
    claude_sessions.FORMAT,
    observed_traces.MLFLOW_TRACES,
    observed_traces.LANGFUSE_EXPORT,
    trajectory_rows.AFM,
    chat.FORMAT,
    trajectory_rows.OWN,
)
"""What can be read. The first format that matches a value reads it, so the strictest come first."""
_LOOKED_AT: Final = 50
"""Number of values of a file after which nothing is expected of it any more."""
UNKNOWN: Final = "unknown"
"""Format of what is no trace that can be read."""
_ENDINGS: Final = frozenset({".json", ".jsonl", ".ndjson", ".parquet", ".txt", ".log", ".otlp", ARCHIVE})
_BESIDE: Final = frozenset({"README.md", "report.html", "verdicts.sqlite", "filled.sqlite"})
"""What `coa distill` writes beside trajectories. It is passed over in silence there, and is no trace anywhere."""


def read_traces(paths: str | Path | Iterable[str | Path]) -> Iterator[Imported]:
    """Everything that files and folders hold, as runs of teams, trajectories, and what had to be skipped."""
    for kind, files in _together(trace_files(paths)):
        yield from _read_group(kind, files)


class Traces:
    """The same, with a count of the files for whoever wants to show how far reading has come."""

    def __init__(self, paths: Iterable[str | Path]) -> None:
        self.files = list(trace_files(paths))
        self.files_read = 0

    def __iter__(self) -> Iterator[Imported]:
        for kind, files in _together(self.files):
            yield from _read_group(kind, files)
            self.files_read += len(files)


def _together(files: Iterable[Path]) -> Iterator[tuple[TraceFormat | None, list[Path]]]:
    """Files one by one, except for those of a format that scatters runs over many; these come last."""
    groups: dict[tuple[TraceFormat, Path], list[Path]] = {}
    for file in files:
        named = (known for known in FORMATS if known.file_names is not None and known.file_names.fullmatch(file.name))
        if (kind := next(named, None)) is not None:
            groups.setdefault((kind, file.parent.parent), []).append(file)
        else:
            yield None, [file]
    yield from ((kind, group) for (kind, _), group in groups.items())


def _read_group(kind: TraceFormat | None, files: list[Path]) -> Iterator[Imported]:
    if kind is None or kind.read_files is None:
        for file in files:
            yield from read_file(file)
    else:
        yield from _guarded(kind.read_files(files), files[0])


def trace_files(paths: str | Path | Iterable[str | Path]) -> Iterator[Path]:
    """The files at these paths and in these folders that may hold traces."""
    for path in map(Path, [paths] if isinstance(paths, str | Path) else paths):
        if path.is_dir():
            yield from _files(path)
        elif path.exists():
            yield path
        else:
            raise nothing_at(path)


def survey(path: Path) -> Counter[str]:
    """Number of records in a file by the name of their format, without reading any of them as a run.

    The records of some formats are parts of a run, such as the spans of OpenTelemetry.
    """
    found: Counter[str] = Counter()
    if _ending(path) not in _ENDINGS:
        return found
    try:
        for _, value in _values(path):
            known = _format(value)
            several = isinstance(value, list) and not (known is not None and known.takes_lists)
            for item in value if several else [value]:
                kind = _format(item)
                found[UNKNOWN if kind is None else kind.name] += 1
    except (OSError, CoaError, *FAULTS, pa.ArrowException):
        found[UNKNOWN] += 1
    return found


def is_team_trace(path: Path) -> bool:
    """Whether a file holds runs of a team, by its first values. Trajectories are none, and neither are tasks."""
    if _ending(path) not in _ENDINGS:
        return False
    try:
        kinds = (_format(value) for _, value in islice(_values(path), _LOOKED_AT))
        found = next((kind for kind in kinds if kind is not None), None)
    except (OSError, CoaError, *FAULTS, pa.ArrowException):
        return False
    return found is not None and found not in (trajectory_rows.AFM, trajectory_rows.OWN)


def _files(folder: Path) -> Iterator[Path]:
    """The files of a folder that may hold traces."""

    def hidden(file: Path) -> bool:
        return any(part.startswith(".") for part in file.relative_to(folder).parts)

    found = sorted(file for file in folder.rglob("*") if file.is_file() and not hidden(file))
    runs = {file.parent for file in found if file.name in NAMES}
    for file in found:
        beside = file.parent in runs and file.name in _BESIDE
        if file.name not in OWN_FILES and not beside and not is_twin(file):
            yield file


def read_file(path: Path) -> Iterator[Imported]:
    if _ending(path) not in _ENDINGS:
        yield Skipped(file=str(path), reason=f"files ending in {path.suffix or 'nothing'} hold no traces")
        return
    yield from _guarded(_read(path), path)


def _guarded(items: Iterator[Imported], path: Path) -> Iterator[Imported]:
    try:
        for item in items:
            yield with_handovers(item) if isinstance(item, TeamRun) else item
    except OSError as error:
        yield Skipped(file=str(path), reason=f"cannot be read: {error.strerror or error}")
    except (CoaError, *FAULTS, pa.ArrowException) as error:
        yield Skipped(file=str(path), reason=reason_of(error))


def _ending(path: Path) -> str:
    """`.jsonl` of `run.jsonl` and of `run.jsonl.gz`."""
    return (path.with_suffix("") if path.suffix.lower() == ".gz" else path).suffix.lower()


def format_of(value: object) -> TraceFormat | None:
    """The format of a JSON value; None if it is no known trace."""
    if is_plainly_own(value):
        return trajectory_rows.OWN
    first = value[0] if isinstance(value, list) and value else value
    return next((known for known in FORMATS if known.matches(value if known.takes_lists else first)), None)


def _read(path: Path) -> Iterator[Imported]:
    if (unknown := _unknown(_values(path), path)) is not None:
        yield unknown
        return
    kind = next((known for _, value in _values(path) if (known := _format(value)) is not None), None)
    if kind is not None and kind.read_file is not None and not _is_parquet(path):
        yield from kind.read_file(path)
    else:
        yield from _each(_values(path), path)


def _values(path: Path) -> Iterator[tuple[str, Any]]:
    """(place, value) of each JSON value or row of a file."""
    if not _is_parquet(path):
        return values(path)
    return ((f"row {number}", row) for number, row in enumerate(read_rows(path), 1))


def _is_parquet(path: Path) -> bool:
    return _ending(path) == ".parquet"


def _unknown(found: Iterable[tuple[str, Any]], path: Path) -> Skipped | None:
    """A file in which no value is a trace is reported once, not row by row."""
    unknown: Skipped | None = None
    for place, value in found:
        if isinstance(value, Bad):
            continue
        if _format(value) is not None:
            return None
        unknown = unknown or _stranger(value, str(path), place)
    return unknown


def _stranger(value: object, file: str, place: str) -> Skipped:
    inner = value[0] if isinstance(value, list) and value else value
    found = (
        f"an object with {', '.join(sorted(map(str, inner))[:8])}" if isinstance(inner, Mapping) else "not an object"
    )
    return Skipped(file=file, place=place, reason=f"no known trace format: it is {found}")


def _each(found: Iterable[tuple[str, Any]], path: Path) -> Iterator[Imported]:
    """Values that are one run each; a damaged one does not affect its neighbours."""
    for place, value in found:
        known = _format(value)
        one_run = known is not None and known.takes_lists and known.read is not None
        if isinstance(value, list) and not one_run:
            yield from _each(((f"{place} row {number}".strip(), item) for number, item in enumerate(value, 1)), path)
            continue
        try:
            if isinstance(value, Bad):
                yield Skipped(file=str(path), place=value.place, reason=value.reason)
            elif known is None or known.read is None:
                yield _stranger(value, str(path), place)
            else:
                yield known.read(value, str(path), place)
        except (CoaError, *FAULTS) as error:
            yield Skipped(file=str(path), place=place, reason=reason_of(error))


def _format(value: object) -> TraceFormat | None:
    try:
        return None if isinstance(value, Bad) else format_of(value)
    except FAULTS:
        return None
