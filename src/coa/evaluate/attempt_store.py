"""Attempts in the order of their tasks, kept on disk: figures need them by task, and files hold them in any order.

A million attempts do not fit into memory as objects. They go into a temporary SQLite database, which SQLite keeps in
memory while it is small and removes by itself, and come back sorted, one task after another.
"""

from __future__ import annotations

import marshal
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Any, Final, Self

from coa.errors import StoreError
from coa.evaluate.attempts import Attempt
from coa.trajectory import Stop, Usage

_USAGE: Final = tuple(Usage.model_fields)
_BATCH: Final = 200
"""Number of attempts that are inserted at once."""
_HINT: Final = "free some space there, or set TMPDIR to a folder with more"


class AttemptStore:
    """Collects attempts in any order; iterating gives each task with its attempts, sorted by task and sample."""

    def __init__(self) -> None:
        self._waiting: list[tuple[bytes, int, int, bytes]] = []
        self._added = 0
        self._connection = temporary_database(
            "CREATE TABLE attempts (task BLOB, sample INTEGER, place INTEGER, record BLOB)"
        )

    @classmethod
    def of(cls, attempts: Iterable[Attempt]) -> Self:
        store = cls()
        for attempt in attempts:
            store.add(attempt)
        return store

    def add(self, attempt: Attempt, place: int | None = None) -> None:
        """`place` orders attempts at the same task with the same sample number, of which the first counts."""
        key = task_key(attempt.task)
        self._waiting.append((key, attempt.sample, self._added if place is None else place, _packed(attempt)))
        self._added += 1
        if len(self._waiting) >= _BATCH:
            self._flush()

    def __len__(self) -> int:
        """Number of attempts that were added, doubles included."""
        return self._added

    @property
    def doubles(self) -> int:
        """Number of attempts that iterating leaves out, because another one of that task and sample came before."""
        self._flush()
        with on_disk():
            query = "SELECT count(*) FROM (SELECT DISTINCT task, sample FROM attempts)"
            return self._added - int(self._connection.execute(query).fetchone()[0])

    def __iter__(self) -> Iterator[tuple[str, list[Attempt]]]:
        self._flush()
        with on_disk():
            rows = self._connection.execute("SELECT task, sample, record FROM attempts ORDER BY task, sample, place")
            for key, same in groupby(rows, key=lambda row: row[0]):
                task = key.decode("utf-8", "surrogatepass")
                last, listed = None, []
                for _, sample, record in same:
                    if sample != last:
                        listed.append(_unpacked(task, sample, record))
                    last = sample
                yield task, listed

    def _flush(self) -> None:
        with on_disk():
            self._connection.execute("BEGIN")
            self._connection.executemany("INSERT INTO attempts VALUES (?, ?, ?, ?)", self._waiting)
            self._connection.execute("COMMIT")
        self._waiting.clear()

    def close(self) -> None:
        self._connection.close()

    def __del__(self) -> None:
        if hasattr(self, "_connection"):  # it has none if there was no room for one
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def temporary_database(script: str) -> sqlite3.Connection:
    """A database without a name: SQLite keeps it in memory while it is small, else in a file that it removes itself."""
    with on_disk():
        # A notebook may write it in one thread and read it in another.
        connection = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        connection.executescript(f"PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; {script}")
    return connection


def task_key(task: str) -> bytes:
    """A task's id as bytes, which SQLite sorts as Python sorts text and which may hold any character."""
    return task.encode("utf-8", "surrogatepass")


@contextmanager
def on_disk() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise StoreError(f"what was read cannot be kept in a temporary file: {error}", hint=_HINT) from error


def _packed(a: Attempt) -> bytes:
    usage = tuple(getattr(a.usage, name) for name in _USAGE)
    return marshal.dumps((
        a.value, a.answer, a.stop.value, usage, dict(a.written), a.shared_out, a.repairs, a.own_score, a.selected,
        a.selected_among, dict(a.scores), dict(a.meta), a.program, a.sequence_tokens, a.unmetered_calls,
        a.why_unscored,
    ))  # fmt: skip


def _unpacked(task: str, sample: int, record: bytes) -> Attempt:
    value, answer, stop, usage, *rest = marshal.loads(record)
    spent: dict[str, Any] = dict(zip(_USAGE, usage, strict=True))
    return Attempt(task, sample, value, answer, Stop(stop), Usage(**spent), *rest)
