"""JSONL that survives crashes and concurrent writers.

A record is one `write` under an exclusive lock, so two processes never interleave. A kill can only tear the last line:
opening the file to append moves the fragment to `<file>.torn` and continues after the last complete record. Records
that are going to be made again are moved to `<file>.aside` first, so a file never has two of one task and sample.

Every line is a trajectory. The first line of each profile also has the profile's definition, as JSON in a string
(`profile_definition`); the lines after it have only its hash. A writer does not search the file for definitions: it
writes each definition once itself, so a file may contain one several times. That is why many writers can append to a
file, and why files can be joined with `cat`.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shlex
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

import orjson
from pydantic import ValidationError

from coa.errors import SchemaVersionError, StoreError, refused
from coa.folder import in_place, replacing
from coa.trajectory.definitions import definition, remember
from coa.trajectory.types import Stop, Trajectory

log = logging.getLogger(__name__)
_BLOCK: Final = 1 << 16


class Lines:
    """Makes the lines of one file. The first line of each profile has the profile's definition."""

    def __init__(self) -> None:
        self._defined: set[str] = set()

    def line(self, record: Trajectory) -> bytes:
        """The line of a record, without the line break."""
        return self.complete(record.to_json().encode(), record.profile_hash)

    def complete(self, line: bytes, profile_hash: str | None, *, is_complete: bool = False) -> bytes:
        """A record that is already JSON, with the definition if no line before had it."""
        text = definition(profile_hash)
        if profile_hash is None or text is None or profile_hash in self._defined:
            return line
        self._defined.add(profile_hash)
        if is_complete:
            return line
        return line.rstrip()[:-1] + b',"profile_definition":' + orjson.dumps(text) + b"}"


class JsonlWriter:
    """Appends records. Several writers may share a file, in one process or in many."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise refused(f"write {self.path}", error) from error
        self._lines = Lines()
        self._fd = _opened(self.path)
        with self._locked():
            _repair(self._fd, self.path)

    def write(self, record: Trajectory) -> None:
        line = record.to_json().encode()
        with self._locked():  # the file may have been replaced by one that has no definition yet
            self._append(self._lines.complete(line, record.profile_hash))

    def write_line(self, line: bytes) -> None:
        """Append a record that is already JSON."""
        with self._locked():
            self._append(line)

    def _append(self, line: bytes) -> None:
        data = memoryview(line + b"\n")
        _repair(self._fd, self.path)  # another writer may have been killed since we opened the file
        start = os.fstat(self._fd).st_size
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except BaseException as error:
            # A full disk or an interrupt may leave part of a record; remove it.
            os.ftruncate(self._fd, start)
            self._lines = Lines()
            if isinstance(error, OSError):
                raise refused(f"append to {self.path}", error) from error
            raise

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the file that has the name now: `set_aside` may have replaced the file that we opened."""
        while True:
            with _locked(self._fd):
                if in_place(self._fd, self.path):
                    yield
                    return
            os.close(self._fd)
            self._fd, self._lines = _opened(self.path), Lines()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_jsonl(path: str | Path) -> Iterator[Trajectory]:
    """Records in order. A torn last line is skipped with a warning; an invalid line before it is an error."""
    path = Path(path)
    searched = False
    for number, line in read_lines(path):
        record = parsed(line, f"{path}, line {number}", hint=bad_line(path, number))
        if record.profile_hash is not None and definition(record.profile_hash) is None and not searched:
            searched = True  # the file was sorted or shuffled, and the definition comes later
            for _, other in read_lines(path):
                _row(other)
        yield record


def set_aside(path: str | Path, stops: Container[Stop], keys: Container[tuple[str, int]] | None = None) -> int:
    """Move the records with one of these stops to `<file>.aside`, to be made again, and return their number.

    With `keys`, only records of these tasks and samples are moved, because nobody would make the others again.

    If it is killed, each record is in the file, or aside, or in both, and the file is complete. Both files contain the
    definitions of their profiles, whichever record had them before.
    """
    path = Path(path)
    if not path.is_file():
        return 0
    with _rewriting(path):

        def lines(*, moved: bool) -> Iterator[bytes]:
            complete = Lines().complete
            for _, line in read_lines(path):
                row = _row(line)
                if moved is (_stop(row) in stops and (keys is None or _key(row) in keys)):
                    whole = "profile_definition" in row
                    yield complete(line, row.get("profile_hash"), is_complete=whole).rstrip() + b"\n"

        moved = list(lines(moved=True))
        if not moved:
            return 0
        with path.with_name(path.name + ".aside").open("ab") as aside:
            aside.writelines(moved)
            os.fsync(aside.fileno())
        _put(path, lines(moved=False))
        return len(moved)


def rewrite(path: str | Path, change: Callable[[Trajectory], Trajectory]) -> None:
    """Replace each record by a changed copy. If it is killed, the file is the old one or the new one."""
    path = Path(path)
    with _rewriting(path):
        lines = Lines()
        _put(path, (lines.line(change(record)) + b"\n" for record in read_jsonl(path)))


@contextmanager
def _rewriting(path: Path) -> Iterator[None]:
    """Lock a file that is going to be replaced as a whole."""
    fd = _opened(path)
    try:
        with _locked(fd):
            _repair(fd, path)
            yield
    except OSError as error:
        raise refused(f"rewrite {path}", error) from error
    finally:
        os.close(fd)


def _put(path: Path, lines: Iterable[bytes]) -> None:
    with replacing(path) as part, part.open("wb") as kept:
        kept.writelines(lines)


def bad_line(path: Path, number: int) -> str:
    """What to do about an invalid line."""
    return f"repair the line, or remove it: sed -i {number}d {shlex.quote(str(path))}"


def parsed(line: bytes, where: str, *, hint: str = "repair or remove the row") -> Trajectory:
    """The record of a line, or an error that says where the invalid line is."""
    try:
        return Trajectory.from_json(line)
    except SchemaVersionError as error:
        raise SchemaVersionError(f"{where}: {error.message}", hint=error.hint) from error
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise StoreError(
            f"{where} is not a trajectory: {field + ': ' if field else ''}{first['msg']}", hint=hint
        ) from error


def read_lines(path: Path, torn: Callable[[int], None] | None = None) -> Iterator[tuple[int, bytes]]:
    """Numbered complete lines of a JSONL file; blank ones are skipped.

    `torn` hears the number of a last line that is not complete; without it, a warning names the line.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise refused(f"read {path}", error) from error
    with file:
        for number, line in enumerate(file, start=1):
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if not line.endswith(b"\n") and not _is_json(line):
                if torn is not None:
                    torn(number)
                    return
                log.warning("%s: line %d is torn and is skipped; opening the file to append repairs it", path, number)
                return
            if line.strip():
                yield number, line


def _row(line: bytes) -> dict[str, Any]:
    """The JSON object of a line, and its definition stored; empty for an invalid line, which its reader will report."""
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        return {}
    if not isinstance(row, dict):
        return {}
    if isinstance(text := row.get("profile_definition"), str):
        remember(text)
    return row


def _stop(row: dict[str, Any]) -> Stop | None:
    try:
        return Stop(row.get("stop", Stop.ANSWERED)) if row else None
    except ValueError:
        return None


def _key(row: dict[str, Any]) -> tuple[str, int] | None:
    try:
        return str(row["task"]["id"]), int(row.get("sample", 0))
    except (ValueError, KeyError, TypeError):
        return None


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise refused(f"write {path}", error) from error


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
    log.warning("%s: the last line was torn; %d bytes were moved to %s.torn", path, len(fragment), path.name)


def _last_line_start(fd: int, size: int) -> int:
    """Where the last line begins, searched from the end in blocks."""
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
