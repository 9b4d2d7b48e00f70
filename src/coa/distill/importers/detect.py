"""Traces of unknown origin: the content of a file, not its name, says which importer reads it.

Files are read one after another and runs are given as they are read. What cannot be read is given as `Skipped`, with
the file, the place in it and the reason; nothing about a file's content is ever raised.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from coa.distill.importers.afm import from_afm, is_afm
from coa.distill.importers.atif import from_atif, is_atif
from coa.distill.importers.chat import is_chat, read_chat
from coa.distill.importers.json_files import FAULTS, Bad, reason_of, values
from coa.distill.importers.oagents import from_oagents, is_oagents
from coa.distill.importers.otlp import is_spans, read_spans
from coa.distill.importers.smolagents import from_smolagents, is_smolagents
from coa.distill.team_run import Format, Skipped, TeamRun
from coa.errors import CoaError, StoreError
from coa.trajectory.formats.rows import read_rows
from coa.trajectory.store import NAMES, OWN_FILES, from_row, is_twin
from coa.trajectory.types import Trajectory

Imported = TeamRun | Trajectory | Skipped
_ENDINGS: Final = frozenset({".json", ".jsonl", ".ndjson", ".parquet", ".txt", ".log", ".otlp"})
_BESIDE: Final = frozenset({"README.md", "report.html", "verdicts.sqlite", "filled.sqlite"})
"""What `coa distill` puts beside trajectories: not worth a word there, and no trace anywhere else."""


def read_traces(paths: str | Path | Iterable[str | Path]) -> Iterator[Imported]:
    """Everything that files and folders hold, as runs of teams, trajectories, and what had to be skipped."""
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    for item in given:
        path = Path(item)
        if path.is_dir():
            for file in _files(path):
                yield from read_file(file)
        elif path.exists():
            yield from read_file(path)
        else:
            raise StoreError(f"there is no file or folder {path}")


def _files(folder: Path) -> Iterator[Path]:
    """Those that may hold traces."""
    found = sorted(file for file in folder.rglob("*") if file.is_file() and not _hidden(file, folder))
    runs = {file.parent for file in found if file.name in NAMES}
    for file in found:
        beside = file.parent in runs and file.name in _BESIDE
        if file.name not in OWN_FILES and not beside and not is_twin(file):
            yield file


def read_file(path: Path) -> Iterator[Imported]:
    if path.suffix.lower() not in _ENDINGS:
        yield Skipped(file=str(path), reason=f"files ending in {path.suffix or 'nothing'} hold no traces")
        return
    try:
        yield from _read(path)
    except OSError as error:
        yield Skipped(file=str(path), reason=f"cannot be read: {error.strerror or error}")
    except (CoaError, *FAULTS, pa.ArrowException) as error:
        yield Skipped(file=str(path), reason=reason_of(error))


def format_of(value: object) -> Format | None:
    """What a JSON value is a trace of. Asked in an order in which each question is sharper than the next."""
    if is_spans(value):
        return Format.OTEL
    if is_smolagents(value):
        return Format.SMOLAGENTS
    first = value[0] if isinstance(value, list) and value else value
    if not isinstance(first, Mapping):
        return None
    if is_atif(first):
        return Format.ATIF
    if is_oagents(first):
        return Format.OAGENTS
    if is_afm(first):
        return Format.AFM
    return Format.CHAT if is_chat(first) else None


def _read(path: Path) -> Iterator[Imported]:
    if path.suffix.lower() == ".parquet":
        if (unknown := _unknown(_parquet(path), path)) is not None:
            yield unknown
        else:
            yield from _each(_parquet(path), path)
        return
    if (unknown := _unknown(values(path), path)) is not None:
        yield unknown
        return
    kind = next((found for _, value in values(path) if (found := _format(value)) is not None), None)
    if kind is Format.OTEL:
        yield from read_spans(path)
    elif kind is Format.CHAT:
        yield from read_chat(path)
    else:
        yield from _each(values(path), path)


def _parquet(path: Path) -> Iterator[tuple[str, Any]]:
    for number, row in enumerate(read_rows(path), start=1):
        yield f"row {number}", row


def _unknown(found: Iterable[tuple[str, Any]], path: Path) -> Skipped | None:
    """A file in which no value is a trace is told once, not row by row."""
    told: Skipped | None = None
    for place, value in found:
        if isinstance(value, Bad):
            continue
        if _format(value) is not None or _is_trajectory(value[0] if isinstance(value, list) and value else value):
            return None
        told = told or _stranger(value, str(path), place)
    return told


def _is_trajectory(value: object) -> bool:
    """One that broke before its first step is written without `steps`, and is a run all the same."""
    return (
        isinstance(value, Mapping)
        and {"task", "profile"} <= set(value)
        and not {"steps", "schema_version"}.isdisjoint(value)
    )


def _stranger(value: object, file: str, place: str) -> Skipped:
    inner = value[0] if isinstance(value, list) and value else value
    fields = f"an object with {', '.join(sorted(map(str, inner))[:8])}" if isinstance(inner, Mapping) else "no object"
    return Skipped(file=file, place=place, reason=f"no known trace format: it is {fields}")


def _each(found: Iterable[tuple[str, Any]], path: Path) -> Iterator[Imported]:
    """Values that stand alone, one run each; a bad one does not take its neighbours along."""
    for place, value in found:
        if isinstance(value, list) and not is_smolagents(value):
            yield from _each(((f"{place} row {number}".strip(), item) for number, item in enumerate(value, 1)), path)
            continue
        try:
            yield _one(value, str(path), place)
        except (CoaError, *FAULTS) as error:
            yield Skipped(file=str(path), place=place, reason=reason_of(error))


def _one(value: Any, file: str, place: str) -> Imported:
    if isinstance(value, Bad):
        return Skipped(file=file, place=value.place, reason=value.reason)
    match _format(value):
        case Format.ATIF:
            return from_atif(value, file, place)
        case Format.OAGENTS:
            return from_oagents(value, file, place)
        case Format.AFM:
            return from_afm(value, file, place)
        case Format.SMOLAGENTS:
            return from_smolagents(value, file, place)
    if not _is_trajectory(value):
        return _stranger(value, file, place)
    # Parquet keeps them in columns of its own, the task as JSON text.
    return from_row(dict(value)) if isinstance(value["task"], str) else Trajectory.model_validate(value)


def _format(value: object) -> Format | None:
    try:
        return None if isinstance(value, Bad) else format_of(value)
    except FAULTS:
        return None


def _hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(folder).parts)
