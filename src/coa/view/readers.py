"""How each kind of source is read: all its records once, for the index, and one of them again, to show it.

A record is found again by two numbers that the index keeps: byte offset and length in JSONL, row group and row in
Parquet, row id in a server's database; in other files only the number of the record counts.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from coa.distill.convert import convert
from coa.distill.team_run import Skipped, TeamRun
from coa.errors import StoreError
from coa.trajectory import Trajectory
from coa.trajectory.formats.alpaca import defect_of, from_alpaca
from coa.trajectory.formats.rows import read_rows
from coa.trajectory.store.jsonl import parsed
from coa.trajectory.store.parquet import as_record, from_row
from coa.view.rows import Unreadable
from coa.view.sources import Source
from coa.view.team_sources import open_team_run, profile_for, team_runs_in

LONGEST_LINE: Final = 256 << 20
"""Number of bytes above which a line is reported instead of read."""
_CHUNK: Final = 1 << 20
_ROWS: Final = 64

Record = Mapping[str, Any]
Convert = Callable[[Any], Record]
"""Turns a row of a file into a trajectory as JSON; raises `Unreadable`."""


class Found(NamedTuple):
    """A record, or what is wrong with it."""

    number: int
    place: int
    length: int
    record: Record | Unreadable
    done: int
    """How much of the file is read after this record, in bytes where the file can be continued."""
    kind: str = "trajectory"


class Opened(NamedTuple):
    """A record that is going to be shown."""

    trajectory: Trajectory
    team: TeamRun | None = None


def records(source: Source, done: int, number: int) -> Iterator[Found]:
    """The records after the first `done` bytes; `number` is that of the first of them."""
    match source.kind:
        case "jsonl":
            return _lines(source.path, done, number, _own)
        case "parquet":
            return _parquet(source.path, as_record)
        case "alpaca":
            if source.path.suffix == ".parquet":
                return _parquet(source.path, _alpaca)
            if source.path.suffix in (".jsonl", ".ndjson"):
                return _lines(source.path, done, number, _alpaca)
            return _listed(source.path, _alpaca)
        case "json":
            return _listed(source.path, _own)
        case "serve":
            return _served(source.path)
        case _:
            return _traces(source)


def is_continued(source: Source) -> bool:
    """Whether a source that grew is read on from where it ended; others are read again as a whole."""
    return source.kind in ("jsonl", "alpaca") and source.path.suffix in (".jsonl", ".ndjson")


def open_record(source: Source, number: int, place: int, length: int) -> Opened:
    """The record as a validated trajectory. Raises `StoreError` if it is not there any more."""
    try:
        return _open(source, number, place, length)
    except Unreadable as error:
        raise StoreError(f"{source.path}, record {number + 1}: {error}") from error
    except (OSError, pa.ArrowException, sqlite3.Error, IndexError, ValueError) as error:
        raise StoreError(f"{source.path} has changed or cannot be read: {error}") from error


def raw_record(source: Source, number: int, place: int, length: int) -> bytes:
    """The record as JSON, as it is in the file where that is JSON."""
    if is_continued(source):
        try:
            return _bytes(source.path, place, length)
        except OSError as error:
            raise StoreError(f"{source.path} cannot be read: {error.strerror}") from error
    return open_record(source, number, place, length).trajectory.to_json().encode()


def _open(source: Source, number: int, place: int, length: int) -> Opened:
    where = f"{source.path}, record {number + 1}"
    if is_continued(source):
        line = _bytes(source.path, place, length)
        if source.kind == "alpaca":
            return Opened(from_alpaca(orjson.loads(line)))
        return Opened(parsed(line, where))
    match source.kind:
        case "parquet" | "alpaca" if source.path.suffix == ".parquet":
            with pq.ParquetFile(source.path) as file:
                row = file.read_row_group(place).slice(length, 1).to_pylist()[0]
            return Opened(from_alpaca(row) if source.kind == "alpaca" else from_row(row))
        case "json" | "alpaca":
            row = next(islice(read_rows(source.path), number, None))
            return Opened(from_alpaca(row) if source.kind == "alpaca" else parsed(orjson.dumps(row), where))
        case "serve":
            with _database(source.path) as database:
                found = database.execute("SELECT trajectory FROM runs WHERE rowid = ?", (place,)).fetchone()
            if found is None:
                raise StoreError("the server has deleted this run")
            return Opened(parsed(found[0], where))
        case _:
            team = open_team_run(source.files, number)
            return Opened(team) if isinstance(team, Trajectory) else Opened(_as_trajectory(team), team)


def _own(row: Any) -> Record:
    if not isinstance(row, Mapping):
        raise Unreadable("the record is not a JSON object")
    return row


def _alpaca(row: Any) -> Record:
    if not isinstance(row, Mapping) or (defect := defect_of(dict(row))) is not None:
        raise Unreadable(f"the row has no trajectory: {defect if isinstance(row, Mapping) else 'it is not an object'}")
    return _json(from_alpaca(dict(row)))


def _json(trajectory: Trajectory) -> Record:
    record: Record = orjson.loads(trajectory.to_json())
    return record


def _as_trajectory(team: TeamRun) -> Trajectory:
    """What distillation makes of the run, with what the team spent."""
    return convert(team, profile_for(team)).model_copy(update={"usage": team.usage})


# ---- JSON lines


def _lines(path: Path, done: int, number: int, convert: Convert) -> Iterator[Found]:
    """Complete lines. What follows the last line break may still be being written; the caller sees that it is left."""
    with path.open("rb") as file:
        file.seek(done)
        pieces: list[bytes] = []
        held = 0
        at = done
        while chunk := file.read(_CHUNK):
            lines = chunk.split(b"\n")
            if len(lines) == 1:
                held += len(chunk)
                if held <= LONGEST_LINE:
                    pieces.append(chunk)
                continue
            first = b"".join([*pieces, lines[0]]) if held <= LONGEST_LINE else b""
            whole = held + len(lines[0])
            yield from _line(first, whole, at, number, convert)
            at += whole + 1
            number += whole > 0 and not first.isspace()
            for line in lines[1:-1]:
                yield from _line(line, len(line), at, number, convert)
                at += len(line) + 1
                number += line != b"" and not line.isspace()
            pieces, held = [lines[-1]], len(lines[-1])
        if held and held <= LONGEST_LINE and _is_json(last := b"".join(pieces)):
            yield from _line(last, held, at, number, convert, ended=False)


def _line(line: bytes, size: int, at: int, number: int, convert: Convert, *, ended: bool = True) -> Iterator[Found]:
    """The record of a line; `ended` if a line break follows."""
    if not size or (line and not line.strip()):
        return
    done = at + size + ended
    if not line:
        problem = Unreadable(f"the line has {size:,} bytes, more than the viewer reads")
        yield Found(number, at, size, problem, done)
        return
    try:
        record: Record | Unreadable = convert(orjson.loads(line.removeprefix(b"\xef\xbb\xbf")))
    except orjson.JSONDecodeError as error:
        record = Unreadable(f"the line is not valid JSON: {error}")
    except Unreadable as error:
        record = error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        record = Unreadable(f"the row cannot be read: {type(error).__name__} at {error}")
    yield Found(number, at, size, record, done)


def _is_json(line: bytes) -> bool:
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return True


def _bytes(path: Path, place: int, length: int) -> bytes:
    with path.open("rb") as file:
        file.seek(place)
        return file.read(length).removeprefix(b"\xef\xbb\xbf")


# ---- other files


def _parquet(path: Path, convert: Convert) -> Iterator[Found]:
    number = 0
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise StoreError(f"it is not a whole Parquet file: {error}") from error
    with file:
        for group in range(file.num_row_groups):
            row_in_group = 0
            try:
                for batch in file.iter_batches(batch_size=_ROWS, row_groups=[group]):
                    for row in batch.to_pylist():
                        yield Found(number, group, row_in_group, _converted(row, convert), number + 1)
                        number += 1
                        row_in_group += 1
            except (pa.ArrowException, OSError) as error:
                problem = Unreadable(f"row group {group + 1} of {file.num_row_groups} is damaged: {error}")
                yield Found(number, group, row_in_group, problem, number + 1)
                number += max(file.metadata.row_group(group).num_rows - row_in_group, 1)


def _listed(path: Path, convert: Convert) -> Iterator[Found]:
    for number, row in enumerate(read_rows(path)):
        yield Found(number, 0, 0, _converted(row, convert), number + 1)


def _converted(row: Any, convert: Convert) -> Record | Unreadable:
    try:
        return convert(row)
    except Unreadable as error:
        return error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return Unreadable(f"the row cannot be read: {type(error).__name__} at {error}")


def _served(path: Path) -> Iterator[Found]:
    try:
        with _database(path) as database:
            rows = database.execute("SELECT rowid, trajectory FROM runs ORDER BY created")
            for place, line in rows:  # a row id, not a count: the server deletes old runs
                yield Found(place, place, 0, _converted(line, orjson.loads), place)
    except sqlite3.Error as error:
        raise StoreError(f"it is not the database of a server: {error}") from error


def changes_beside(path: Path) -> Path:
    """The file in which SQLite keeps recent changes of a database."""
    return path.with_name(f"{path.name}-wal")


def has_changes_apart(path: Path) -> bool:
    try:
        return changes_beside(path).stat().st_size > 0
    except OSError:
        return False


class _database:
    """A connection that only reads, closed at the end."""

    def __init__(self, path: Path) -> None:
        # Without a log of changes nobody writes it. Opened as immutable, SQLite makes no files beside it.
        fixed = "" if has_changes_apart(path) else "&immutable=1"
        self._connection = sqlite3.connect(f"file:{quote(bytes(path))}?mode=ro{fixed}", uri=True, timeout=5.0)

    def __enter__(self) -> sqlite3.Connection:
        return self._connection

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def _traces(source: Source) -> Iterator[Found]:
    for number, item in team_runs_in(source.files):
        if isinstance(item, Skipped):
            yield Found(number, 0, 0, Unreadable(f"{item.place} {item.reason}".strip()), number + 1)
        elif isinstance(item, Trajectory):
            yield Found(number, 0, 0, _json(item), number + 1)
        else:
            yield Found(number, 0, 0, _converted(item, lambda team: _json(_as_trajectory(team))), number + 1, "team")
