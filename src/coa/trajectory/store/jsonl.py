"""JSONL that survives crashes and company.

A record is one `write` under an exclusive lock, so two processes never interleave. A kill can only tear the last line:
opening the file to append puts the fragment into `<file>.torn` and goes on after the last whole record. Records to be
made again are moved to `<file>.aside` first, so that a file never holds two of one task and sample.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import orjson
from pydantic import ValidationError

from coa.errors import SchemaVersionError, StoreError
from coa.folder import in_place, replacing
from coa.trajectory.types import Stop, Trajectory

log = logging.getLogger(__name__)
_BLOCK: Final = 1 << 16


class JsonlWriter:
    """Appends records. Several writers may share a file, in one process or in many."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot write {self.path}: {error.strerror}") from error
        self._fd = _opened(self.path)
        with self._locked():
            _repair(self._fd, self.path)

    def write(self, record: Trajectory) -> None:
        self.write_line(record.to_json().encode())

    def write_line(self, line: bytes) -> None:
        """One record, already JSON."""
        data = memoryview(line + b"\n")
        with self._locked():
            _repair(self._fd, self.path)  # another writer may have been killed since we opened the file
            start = os.fstat(self._fd).st_size
            try:
                while data:
                    data = data[os.write(self._fd, data) :]
            except BaseException as error:
                # A full disk or an interrupt takes part of a record; what was whole before stays whole.
                os.ftruncate(self._fd, start)
                if isinstance(error, OSError):
                    raise StoreError(f"cannot append to {self.path}: {error.strerror}") from error
                raise

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """The lock on the file that has the name now: `set_aside` may have put another in the place of ours."""
        while True:
            with _locked(self._fd):
                if in_place(self._fd, self.path):
                    yield
                    return
            os.close(self._fd)
            self._fd = _opened(self.path)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_jsonl(path: str | Path) -> Iterator[Trajectory]:
    """Records in order. A torn last line is left out with a warning; a bad line before it is an error."""
    path = Path(path)
    for number, line in read_lines(path):
        yield parsed(line, f"{path}, line {number}")


def set_aside(path: str | Path, stops: Container[Stop], keys: Container[tuple[str, int]] | None = None) -> int:
    """Move the records that ended so into `<file>.aside`, to be made again; how many there were.

    With `keys`, only those of these tasks and samples: nobody would make the others again.

    Whenever it is killed, each record stands in the file, or aside, or in both; and the file is whole.
    """
    path = Path(path)
    if not path.is_file():
        return 0
    with _rewriting(path):

        def wanted(line: bytes) -> bool:
            return _stop(line) in stops and (keys is None or _key(line) in keys)

        moved = [line for _, line in read_lines(path) if wanted(line)]
        if not moved:
            return 0
        with path.with_name(path.name + ".aside").open("ab") as aside:
            aside.writelines(moved)
            os.fsync(aside.fileno())
        _put(path, (line for _, line in read_lines(path) if not wanted(line)))
        return len(moved)


def rewrite(path: str | Path, change: Callable[[Trajectory], Trajectory]) -> None:
    """Put a changed copy in the place of each record. Whenever it is killed, the file is the old one or the new one."""
    path = Path(path)
    with _rewriting(path):
        records = (change(parsed(line, f"{path}, line {number}")) for number, line in read_lines(path))
        _put(path, (record.to_json().encode() + b"\n" for record in records))


@contextmanager
def _rewriting(path: Path) -> Iterator[None]:
    """The lock on a whole file that another is going to replace."""
    fd = _opened(path)
    try:
        with _locked(fd):
            _repair(fd, path)
            yield
    except OSError as error:
        raise StoreError(f"cannot rewrite {path}: {error.strerror}") from error
    finally:
        os.close(fd)


def _put(path: Path, lines: Iterable[bytes]) -> None:
    with replacing(path) as part, part.open("wb") as kept:
        kept.writelines(lines)


def parsed(line: bytes, where: str) -> Trajectory:
    """A record, or an error that says where the bad one is."""
    try:
        return Trajectory.from_json(line)
    except SchemaVersionError as error:
        raise SchemaVersionError(f"{where}: {error.message}", hint=error.hint) from error
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise StoreError(f"{where} is not a trajectory: {field + ': ' if field else ''}{first['msg']}") from error


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Numbered whole lines of a JSONL file; blank ones are skipped."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    with file:
        for number, line in enumerate(file, start=1):
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if not line.endswith(b"\n") and not _is_json(line):
                log.warning("%s: line %d is torn and left out; opening the file to append repairs it", path, number)
                return
            if line.strip():
                yield number, line


def _stop(line: bytes) -> Stop | None:
    try:
        return Stop(orjson.loads(line).get("stop", Stop.ANSWERED))
    except (ValueError, AttributeError):
        return None  # not a record; whoever reads the file will say so


def _key(line: bytes) -> tuple[str, int] | None:
    try:
        row = orjson.loads(line)
        return str(row["task"]["id"]), int(row.get("sample", 0))
    except (ValueError, AttributeError, KeyError, TypeError):
        return None


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from error


@contextmanager
def _locked(fd: int) -> Iterator[None]:
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)


def _repair(fd: int, path: Path) -> None:
    size = os.fstat(fd).st_size
    if size == 0 or os.pread(fd, 1, size - 1) == b"\n":
        return
    start = _last_line_start(fd, size)
    fragment = os.pread(fd, size - start, start)
    if _is_json(fragment):
        os.write(fd, b"\n")
        return
    with path.with_name(path.name + ".torn").open("ab") as torn:
        torn.write(fragment + b"\n")
    os.ftruncate(fd, start)
    log.warning("%s: its last line was torn; %d bytes moved to %s.torn", path, len(fragment), path.name)


def _last_line_start(fd: int, size: int) -> int:
    """Where the last line begins, found from the end in blocks."""
    end = size
    while end > 0:
        begin = max(0, end - _BLOCK)
        newline = os.pread(fd, end - begin, begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        end = begin
    return 0


def _is_json(line: bytes) -> bool:
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return True
