"""Stored runs: what `previous_response_id`, `GET /v1/responses/{id}` and the history of the page read.

One SQLite file in the state folder. It survives a kill of the process, since a run is written before its client learns
that it is done. Runs expire, and the oldest go first when the file would grow beyond its limit. A run belongs to the
key that started it; other keys do not see it.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from coa.errors import StoreError, refused
from coa.trajectory import Trajectory
from coa.trajectory.store import Lines

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS runs (
  id TEXT PRIMARY KEY, owner TEXT NOT NULL, protocol TEXT NOT NULL, agent TEXT NOT NULL, created REAL NOT NULL,
  status TEXT NOT NULL, previous TEXT, conversation TEXT NOT NULL, question TEXT NOT NULL, call TEXT,
  body BLOB NOT NULL, trajectory BLOB NOT NULL, size INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS runs_by_age ON runs (created, id, size);
CREATE INDEX IF NOT EXISTS runs_by_list ON runs (owner, protocol, conversation, created);
CREATE INDEX IF NOT EXISTS runs_by_call ON runs (call) WHERE call IS NOT NULL;
CREATE INDEX IF NOT EXISTS runs_by_turn ON runs (conversation, owner, created);
"""
# Most of a row is its two blobs. What is asked of all rows is answered from an index alone, or SQLite would read every
# row and, for `size`, every page of the blobs before it, while the server's streams wait.
_FIELDS: Final = "id, owner, protocol, agent, created, status, previous, conversation, question, call, body, trajectory"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class StoredRun:
    id: str
    owner: str
    """Name of the key that started it."""
    protocol: str
    agent: str
    created: float
    status: str
    previous: str | None
    """The run that this one follows in its conversation."""
    conversation: str
    """Id of the first run of the conversation."""
    question: str
    call: str | None
    """Id of the client's call that it waits for."""
    body: bytes
    """What the protocol keeps of it, as JSON."""
    line: bytes
    """The trajectory, as a line of a file."""

    @property
    def trajectory(self) -> Trajectory:
        return Trajectory.from_json(self.line)


class Conversation(NamedTuple):
    id: str
    """That of its first run."""
    question: str
    """The beginning of its first question."""
    updated: float
    """When its last run was started."""


def trajectory_line(trajectory: Trajectory) -> bytes:
    """A line that contains the definition of its profile, so that it can be read alone."""
    return Lines().line(trajectory)


class Store:
    """Of one server. `clock` returns the seconds since the epoch."""

    def __init__(self, folder: Path, *, days: float, most_bytes: int, clock: Callable[[], float] = time.time) -> None:
        self._days, self._most_bytes, self._clock = days, most_bytes, clock
        self.path = folder / "runs.sqlite"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            raise refused(f"write {self.path}", error) from error
        try:
            self._db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=10.0)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version > _VERSION:
                raise StoreError(
                    f"{self.path} was written by a newer coa", hint="upgrade coa, or choose another --set state=FOLDER"
                )
            self._db.executescript(_SCHEMA)
            self._db.execute(f"PRAGMA user_version={_VERSION}")
            self._size: int = self._db.execute("SELECT coalesce(sum(size), 0) FROM runs").fetchone()[0]
        except sqlite3.Error as error:
            raise StoreError(
                f"{self.path} cannot be read: {error}", hint="move the file away, or choose another --set state=FOLDER"
            ) from error

    def put(self, run: StoredRun) -> None:
        """Keep the run; one with the same id is replaced."""
        size = len(run.body) + len(run.line) + len(run.question)
        self.delete(run.id, run.owner)
        values = (run.id, run.owner, run.protocol, run.agent, run.created, run.status, run.previous, run.conversation,
                  run.question, run.call, run.body, run.line, size)  # fmt: skip
        try:
            self._db.execute(f"INSERT OR REPLACE INTO runs ({_FIELDS}, size) VALUES ({','.join('?' * 13)})", values)
        except sqlite3.Error as error:
            raise StoreError(f"cannot write {self.path}: {error}", hint="check the disk") from error
        self._size += size
        if self._size > self._most_bytes:
            self._make_room(keep=run.id)

    def get(self, run_id: str, owner: str) -> StoredRun | None:
        return self._one("id = ? AND owner = ?", run_id, owner)

    def by_call(self, call: str, owner: str) -> StoredRun | None:
        """The run that waits for the result of this call."""
        return self._one("call = ? AND owner = ?", call, owner)

    def continued(self, run_id: str) -> None:
        """The client sent the result that the run waited for."""
        self._db.execute("UPDATE runs SET status = 'continued' WHERE id = ?", (run_id,))

    def delete(self, run_id: str, owner: str) -> bool:
        """Whether there was one."""
        rows = self._db.execute(
            "DELETE FROM runs WHERE id = ? AND owner = ? RETURNING size", (run_id, owner)
        ).fetchall()
        self._size -= sum(size for (size,) in rows)
        return bool(rows)

    def conversations(self, owner: str, protocol: str, *, limit: int = 200) -> list[Conversation]:
        """The newest first."""
        newest = (
            "SELECT conversation, owner, max(created) AS updated FROM runs WHERE owner = ? AND protocol = ? "
            "GROUP BY conversation ORDER BY updated DESC LIMIT ?"
        )
        first = "SELECT substr(question, 1, 300) FROM runs WHERE conversation = one.conversation AND owner = one.owner"
        rows = self._db.execute(
            f"SELECT conversation, ({first} ORDER BY created LIMIT 1), updated FROM ({newest}) AS one "
            "ORDER BY updated DESC",
            (owner, protocol, limit),
        )
        return [Conversation(*row) for row in rows]

    def conversation(self, conversation: str, owner: str) -> list[StoredRun]:
        """Its runs, the first one first."""
        return self._many("conversation = ? AND owner = ? ORDER BY created", conversation, owner)

    def expire(self) -> list[StoredRun]:
        """Delete what is too old, and return those of the runs that still wait for their client."""
        before = self._clock() - self._days * 86400
        gone = self._many("created < ? AND status = 'waiting'", before)
        self._db.execute("DELETE FROM runs WHERE created < ?", (before,))
        self._size = self._db.execute("SELECT coalesce(sum(size), 0) FROM runs").fetchone()[0]
        return gone

    def close(self) -> None:
        self._db.close()

    def _make_room(self, keep: str) -> None:
        """Delete the oldest runs until a tenth of the room is free again."""
        for run_id, size in self._db.execute("SELECT id, size FROM runs ORDER BY created").fetchall():
            if self._size <= 0.9 * self._most_bytes:
                return
            if run_id != keep:
                self._db.execute("DELETE FROM runs WHERE id = ?", (run_id,))
                self._size -= size

    def _one(self, where: str, *values: object) -> StoredRun | None:
        return next(iter(self._many(where, *values)), None)

    def _many(self, where: str, *values: object) -> list[StoredRun]:
        return list(self._rows(f"SELECT {_FIELDS} FROM runs WHERE {where}", values))

    def _rows(self, query: str, values: tuple[object, ...]) -> Iterator[StoredRun]:
        for row in self._db.execute(query, values):
            yield StoredRun(*row)
