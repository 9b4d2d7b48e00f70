"""Files of run folders, read as they are: half-written, damaged, of any version. Defects are reported, not raised."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any, Final, Generic, TypeGuard, TypeVar

import orjson

T = TypeVar("T")
Row = dict[str, Any]
Stamp = tuple[int, int]
_LARGEST_JSON: Final = 64 << 20


def stamp(path: Path) -> Stamp | None:
    """Time of the last change and size; None without a file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


class Cache(Generic[T]):
    """What was read from files, until they change; the least recently used are forgotten."""

    def __init__(self, most: int) -> None:
        self._most, self._kept = most, OrderedDict[str, tuple[object, T]]()
        self._lock = Lock()

    def get(self, path: Path, mark: object, read: Callable[[], T]) -> T:
        """What `read` gives, or gave for the same `mark`."""
        key = str(path)
        with self._lock:
            if (kept := self._kept.get(key)) is not None and kept[0] == mark:
                self._kept.move_to_end(key)
                return kept[1]
        found = read()
        with self._lock:
            self._kept[key] = (mark, found)
            self._kept.move_to_end(key)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return found


_json: Cache[tuple[Row | None, str]] = Cache(256)
_metrics: Cache[tuple[list[Row], list[str]]] = Cache(32)


def read_json(path: Path) -> tuple[Row | None, str]:
    """A JSON object, and what is wrong where there is none; both are empty without a file."""
    if (mark := stamp(path)) is None:
        return None, ""
    return _json.get(path, mark, lambda: _read_json(path, mark[1]))


def _read_json(path: Path, size: int) -> tuple[Row | None, str]:
    if size > _LARGEST_JSON:
        return None, f"{path.name} is too large to read ({size:,} bytes)."
    try:
        found = orjson.loads(path.read_bytes())
    except OSError as error:
        return None, f"{path.name} cannot be read: {error.strerror}."
    except orjson.JSONDecodeError as error:
        return None, f"{path.name} is damaged: {error}."
    return (found, "") if isinstance(found, dict) else (None, f"{path.name} holds no JSON object.")


def read_metrics(path: Path) -> tuple[list[Row], list[str]]:
    """The rows of a metrics.jsonl, one for each step, in the order of steps; and what is wrong.

    A step may have several rows (its updates, an evaluation): they are joined. A row that is not complete yet, which is
    the last one of a run that goes on, is no problem.
    """
    mark = stamp(path)
    return _metrics.get(path, mark, lambda: _read_metrics(path)) if mark is not None else ([], [])


def _read_metrics(path: Path) -> tuple[list[Row], list[str]]:
    try:
        data = path.read_bytes()
    except OSError as error:
        return [], [f"{path.name} cannot be read: {error.strerror}."]
    rows: dict[float, Row] = {}
    bad: list[int] = []
    whole = data.endswith(b"\n")
    listed = data.splitlines()
    for number, line in enumerate(listed, start=1):
        if not line.strip():
            continue
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:
            row = None
        if isinstance(row, dict) and is_number(step := row.get("step")):
            rows.setdefault(step, {}).update(row)
        elif whole or number < len(listed):
            bad.append(number)
    problems = []
    if bad:
        named = ", ".join(map(str, bad[:5])) + (" and others" if len(bad) > 5 else "")
        problems.append(
            f"{path.name}: {len(bad)} damaged {'row' if len(bad) == 1 else 'rows'} left out (line {named})."
        )
    return [rows[step] for step in sorted(rows)], problems


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a number in the sense of JSON; a truth value is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def number(value: object) -> float | None:
    return float(value) if is_number(value) else None


def mapping(value: object) -> Row:
    """The value if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def text(value: object) -> str:
    return value if isinstance(value, str) else ""
