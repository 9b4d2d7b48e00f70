"""The JSON values of a file, one after another: JSONL, one document, or several documents in a row (printed logs).

Files compressed with gzip and archives of Inspect are read as they are. Reading is lazy for JSONL. A damaged value
becomes a `Bad` with its line, and the lines after it are still read.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, Final, TypeVar, cast

import orjson
from pydantic import ValidationError

from coa.distill.importers.archives import DAMAGED, samples
from coa.distill.run_files import ARCHIVE
from coa.errors import CoaError

FAULTS: Final = (AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError)
"""What reading a value of an unforeseen shape can raise. Caught where a run is read from a file, and nowhere else."""
_DECODER: Final = json.JSONDecoder(parse_constant=lambda _: None)
MOST_BYTES: Final = 1 << 30
"""Largest size of a single document, which has to be read whole."""
_SEPARATORS: Final = re.compile(r"[ \t\r\n,\x1e]*")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Bad:
    """Something that is not JSON."""

    place: str
    reason: str


def values(path: Path) -> Iterator[tuple[str, Any]]:
    """(place, value) of each JSON value in a file; the value may be `Bad`."""
    if path.suffix.lower() == ARCHIVE:
        yield from _archived(path)
        return
    try:
        yield from _values(path)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        yield "", Bad("", f"damaged gzip data: {error}")


def _values(path: Path) -> Iterator[tuple[str, Any]]:
    lines = _lines(path)
    first = next(lines, None)
    if first is None:
        yield "", Bad("", "the file is empty")
        return
    value = _parsed(first)
    second = next(lines, None) if not isinstance(value, Bad) else None
    if isinstance(value, Bad) or (second is None and not isinstance(value, dict)):
        yield from _documents(path)
        return
    yield "line 1", value
    for number, line in enumerate(() if second is None else chain([second], lines), start=2):
        yield f"line {number}", _parsed(line, f"line {number}")


def _archived(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        for name, data in samples(path):
            yield name, Bad(name, "a sample in chunks, which cannot be read") if data is None else _parsed(data, name)
    except DAMAGED as error:
        yield "", Bad("", f"a damaged archive: {error}")


def _opened(path: Path) -> IO[bytes] | gzip.GzipFile:
    return cast(IO[bytes], gzip.open(path)) if path.suffix.lower() == ".gz" else path.open("rb")


def _lines(path: Path) -> Iterator[bytes]:
    with _opened(path) as file:
        for number, line in enumerate(file):
            line = line.removeprefix(b"\xef\xbb\xbf") if number == 0 else line
            if not line.isspace():
                yield line


def _parsed(line: bytes, place: str = "") -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        try:
            # Python's json module writes NaN and halves of surrogate pairs, which are not valid JSON.
            return _DECODER.decode(line.decode())
        except (ValueError, RecursionError):
            return Bad(place, f"not valid JSON: {error}")


def _documents(path: Path) -> Iterator[tuple[str, Any]]:
    """One document over many lines, or several in a row as a console exporter prints them."""
    with _opened(path) as file:
        data = file.read(MOST_BYTES + 1).removeprefix(b"\xef\xbb\xbf")
    if len(data) > MOST_BYTES:
        yield "", Bad("", f"a single document of more than {MOST_BYTES >> 30} GiB; write one run to a line instead")
        return
    value = _parsed(data)
    if not isinstance(value, Bad):
        yield "", value
        return
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        yield "", Bad("", f"not UTF-8: {error.reason} at byte {error.start}")
        return
    position, number = 0, 0
    while (position := _SEPARATORS.match(text, position).end()) < len(text):  # type: ignore[union-attr]
        number += 1
        try:
            value, position = _DECODER.raw_decode(text, position)
        except (json.JSONDecodeError, RecursionError) as error:
            line = text.count("\n", 0, position) + 1
            reason = f"not valid JSON: {getattr(error, 'msg', 'nested too deep')} near line {line}"
            if number > 1 or not (rest := _by_line(text)):
                yield f"document {number}", Bad(f"document {number}", reason)
            else:
                yield from rest
            return
        yield f"document {number}", value
    if number == 0:
        yield "", Bad("", "the file holds no JSON, only separators")


def _by_line(text: str) -> list[tuple[str, Any]]:
    """Lines, where the first one is damaged but others are whole objects: JSONL with a damaged first line."""
    lines = ((f"line {number}", line) for number, line in enumerate(text.splitlines(), start=1) if line.strip())
    rows = [(place, _parsed(line.encode(), place)) for place, line in lines]
    whole = sum(isinstance(value, dict) for _, value in rows)
    return rows if whole and whole * 2 >= len(rows) else []


def grouped(items: Callable[[], Iterator[tuple[Hashable, T]]]) -> Iterator[tuple[Hashable, list[T]]]:
    """Items grouped by key; each group is given as soon as its last item was read.

    It reads twice: once to count, once to collect, so that memory holds the unfinished groups and not the whole file.
    """
    left: dict[Hashable, int] = {}
    for key, _ in items():
        left[key] = left.get(key, 0) + 1
    open_groups: dict[Hashable, list[T]] = {}
    for key, item in items():
        open_groups.setdefault(key, []).append(item)
        left[key] -= 1
        if left[key] == 0:
            del left[key]
            yield key, open_groups.pop(key)


def reason_of(error: BaseException) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    if isinstance(error, CoaError):
        return error.message
    return f"a shape that is not understood ({type(error).__name__}: {error})"
