"""Rows of a data file: JSONL, a JSON list, or Parquet."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final

import orjson

from coa.errors import StoreError, nothing_at, refused
from coa.trajectory.store.jsonl import bad_line, read_lines
from coa.trajectory.store.parquet import parquet_rows

Row = Mapping[str, Any]
_BATCH: Final = 256


def read_rows(path: str | Path, defects: Counter[str] | None = None) -> Iterator[Row]:
    """Rows that are not objects and lines that are not JSON are errors, or with `defects` are counted and skipped."""
    path = Path(path)
    if not path.is_file():
        raise nothing_at(path, "file")
    if path.suffix == ".parquet":
        rows: Iterator[Any] = parquet_rows(path)
    elif _is_json_list(path):
        rows = _json_list(path)
    else:
        rows = _jsonl(path, defects)
    for number, row in enumerate(rows, start=1):
        if isinstance(row, dict):
            yield row
        elif defects is None:
            raise StoreError(
                f"{path}, row {number} is a JSON {type(row).__name__}, not an object", hint="repair or remove the row"
            )
        else:
            defects["not an object"] += 1


def _is_json_list(path: Path) -> bool:
    try:
        file = path.open("rb")
    except OSError as error:
        raise refused(f"read {path}", error) from error
    with file:
        return file.read(256).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")


def _json_list(path: Path) -> Iterator[Any]:
    try:
        yield from orjson.loads(path.read_bytes().removeprefix(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError as error:
        raise StoreError(
            f"{path} begins like a JSON list but is not valid: {error}", hint="write one JSON object per line instead"
        ) from error


def _jsonl(path: Path, defects: Counter[str] | None) -> Iterator[Any]:
    for number, line in read_lines(path):
        try:
            yield orjson.loads(line)
        except orjson.JSONDecodeError as error:
            if defects is None:
                raise StoreError(
                    f"{path}, line {number} is not valid JSON: {error}", hint=bad_line(path, number)
                ) from error
            defects["not JSON"] += 1


def write_rows(path: str | Path, rows: Iterable[bytes]) -> int:
    """Write JSON objects to .jsonl, .json (a list) or .parquet, by the suffix, as a stream. Returns their number."""
    path = Path(path)
    match path.suffix:
        case ".jsonl":
            return write_joined(path, rows, b"", b"\n", b"\n")
        case ".json":
            return write_joined(path, rows, b"[\n", b",\n", b"\n]\n")
        case ".parquet":
            return _write_parquet(path, rows)
    raise StoreError(f"{path}: rows can be written to .jsonl, .json or .parquet")


def write_joined(path: Path, rows: Iterable[bytes], before: bytes, between: bytes, after: bytes) -> int:
    """Write the rows as a stream, with `between` between two of them. Returns their number."""
    count = 0
    with path.open("wb") as file:
        file.write(before)
        for count, row in enumerate(rows, start=1):
            file.write(row if count == 1 else between + row)
        file.write(after if count or before else b"")
    return count


def _write_parquet(path: Path, rows: Iterable[bytes]) -> int:
    """In two passes over a temporary copy, because the columns are those of all rows, not only of the first ones."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    count, schema = 0, None
    with tempfile.TemporaryFile() as spool:
        try:
            source = iter(rows)
            while batch := list(islice(source, _BATCH)):
                found = pa.Table.from_pylist(_aligned([orjson.loads(row) for row in batch])).schema
                schema = found if schema is None else pa.unify_schemas([schema, found], promote_options="permissive")
                spool.writelines(row + b"\n" for row in batch)
                count += len(batch)
            if schema is None:
                raise StoreError("there are no rows to write")
            spool.seek(0)
            with pq.ParquetWriter(path, schema, compression="zstd") as writer:
                while batch := list(islice(spool, _BATCH)):
                    writer.write_table(pa.Table.from_pylist([orjson.loads(row) for row in batch], schema=schema))
        except pa.ArrowException as error:
            raise StoreError(f"these rows do not fit one table: {error}", hint="write them to .jsonl") from error
    return count


def _aligned(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Arrow takes the columns from the first row, so that one needs every key of the batch."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return [dict.fromkeys(keys) | rows[0], *rows[1:]]
