"""Answers of tools, kept in an SQLite file: recorded once, replayed offline byte for byte, shared by many processes.

The file also keeps a description of each tool (its text, shape and settings), so a replay opens no tool at all: it
needs no key, no index and no server, and cannot make a live call by mistake.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

import orjson
from pydantic import JsonValue

from coa.errors import StoreError
from coa.tools.base import Observation, Part, Tool, ToolContext, settings_of, uses_of
from coa.trajectory import Shape

log = logging.getLogger(__name__)

VERSION: Final = 2
BUSY_S: Final = 30.0
"""How long a process waits for another one that is writing."""
_TABLES: Final = (
    "CREATE TABLE tools (name TEXT, given TEXT, settings TEXT, uses TEXT, about TEXT, shape TEXT, timeout_s REAL, "
    "seen REAL, PRIMARY KEY (name, given, settings))",
    "CREATE TABLE answers (key BLOB PRIMARY KEY, tool TEXT, arguments TEXT, text BLOB, ok INTEGER, meta TEXT, at REAL)",
    f"PRAGMA user_version = {VERSION}",
)


@dataclass(frozen=True, slots=True)
class Described:
    """What the file knows about a tool."""

    given: str
    """A digest of what the user wrote after `name=`; empty if nothing."""
    settings: JsonValue
    uses: tuple[Part, ...]
    about: str
    shape: Shape
    timeout_s: float

    @classmethod
    def of(cls, tool: Tool, given: str = "") -> Described:
        return cls(given, settings_of(tool), uses_of(tool), tool.about, tool.shape, tool.timeout_s)


@dataclass(frozen=True, slots=True)
class Keys:
    """A good answer is found by the call alone; a failure only by the run in which it happened.

    So an outage is replayed where it happened, and does not replace the answer that another run got. What was read from
    a file is found by the file's content while recording, and by the task in a replay, which has no files.
    """

    answer: bytes
    failure: bytes
    task: bytes


def keys_of(
    name: str, tool: Described, arguments: Mapping[str, JsonValue], context: ToolContext, fingerprint: str = ""
) -> Keys:
    task = context.task
    parts: dict[Part, JsonValue] = {Part.QUESTION: task.question_in_context, Part.FILES: list(task.files)}
    parts[Part.THOUGHT] = context.thought
    call: list[JsonValue] = [name, tool.settings, dict(arguments), {part.value: parts[part] for part in tool.uses}]
    whole: list[JsonValue] = ["failure", tool.given, *call, task.id, *parts.values()]
    found: list[JsonValue] = ["answer", *call, *([fingerprint] if fingerprint else [])]
    return Keys(_digest(found), _digest(whole), _digest(["task", tool.given, *call, task.id]))


class Cache:
    """The file. Any number of processes and threads may use it at once."""

    def __init__(self, path: str | Path, *, read_only: bool = False) -> None:
        self.path = Path(path)
        self._read_only = read_only
        self._owner = -1
        self._lock = threading.Lock()
        self._open()

    def find(self, key: bytes) -> Observation | None:
        try:
            return _found(self._reading(), key)
        except sqlite3.Error as error:
            raise StoreError(f"cannot read {self.path}: {error}") from error

    def keep(
        self, key: bytes, tool: str, arguments: Mapping[str, JsonValue], answer: Observation, *, replace: bool = False
    ) -> Observation:
        """Returns what the file holds for the key afterwards: the first answer stays, unless `replace` is set."""
        text, meta = answer.text.encode("utf-8", "surrogatepass"), _json(dict(answer.meta))
        row = (key, tool, _json(dict(arguments)), text, answer.ok, meta, time.time())
        with self._writing() as connection:
            either = "REPLACE" if replace else "IGNORE"
            connection.execute(f"INSERT OR {either} INTO answers VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            return _found(connection, key) or answer

    def forget(self, key: bytes) -> None:
        with self._writing() as connection:
            connection.execute("DELETE FROM answers WHERE key = ?", (key,))

    def describe(self, name: str, tool: Described) -> None:
        shape, uses = tool.shape.model_dump_json(), _json([part.value for part in tool.uses])
        row = (name, tool.given, _json(tool.settings), uses, tool.about, shape, tool.timeout_s, time.time())
        with self._writing() as connection:
            connection.execute("INSERT OR REPLACE INTO tools VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)

    def described(self, name: str) -> list[Described]:
        """The tool with each of the settings that it was recorded with, the latest first."""
        query = "SELECT given, settings, uses, about, shape, timeout_s FROM tools WHERE name = ? ORDER BY seen DESC"
        found = []
        for given, settings, uses, about, shape, timeout_s in self._reading().execute(query, (name,)).fetchall():
            parts = tuple(Part(part) for part in orjson.loads(uses))
            shaped = Shape.model_validate_json(shape)
            found.append(Described(given, orjson.loads(settings), parts, about, shaped, timeout_s))
        return found

    def names(self) -> list[str]:
        return [name for (name,) in self._reading().execute("SELECT DISTINCT name FROM tools ORDER BY name").fetchall()]

    def __len__(self) -> int:
        ((count,),) = self._reading().execute("SELECT count(*) FROM answers").fetchall()
        return int(count)

    def close(self) -> None:
        if self._owner == os.getpid():
            self._reader.close()
            self._writer.close()
        self._owner = -1

    def _reading(self) -> sqlite3.Connection:
        if self._owner != os.getpid():  # a connection must not be used on both sides of a fork
            self._open()
        return self._reader

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction, which sees what others have written before it."""
        self._reading()
        try:
            with self._lock:
                self._writer.execute("BEGIN IMMEDIATE")
                try:
                    yield self._writer
                    self._writer.execute("COMMIT")
                except BaseException:
                    self._writer.execute("ROLLBACK")
                    raise
        except sqlite3.Error as error:
            raise StoreError(f"cannot write {self.path}: {error}", hint="check the free space on the disk") from error

    def _open(self) -> None:
        if self._read_only and not self.path.exists():
            hint = f"record one: --set cache=record --set cache_file={self.path}"
            raise StoreError(f"there is no recording {self.path}", hint=hint)
        try:
            if not self._read_only:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                _create(self.path)
            self._reader = _reader(self.path) if self._read_only else _connect(self.path)
            self._writer = self._reader if self._read_only else _connect(self.path)
            ((version,),) = self._reader.execute("PRAGMA user_version").fetchall()
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"{self.path} cannot be used as a cache: {error}", hint="choose another file") from error
        if version != VERSION:
            raise StoreError(f"{self.path} is not a cache of this version of coa", hint="choose another file")
        self._owner = os.getpid()


def _create(path: Path) -> None:
    """Create the tables if they are missing. One process at a time: SQLite does not wait for the change to WAL."""
    with open(f"{path}.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        connection = _connect(path)
        try:
            tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if not tables:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("BEGIN IMMEDIATE")
                for statement in _TABLES:
                    connection.execute(statement)
                connection.execute("COMMIT")
        finally:
            connection.close()


def _connect(path: Path, mode: str = "mode=rwc") -> sqlite3.Connection:
    place = str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    connection = sqlite3.connect(
        f"file:{place}?{mode}", uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False
    )
    if mode == "mode=rwc":
        connection.execute("PRAGMA synchronous = NORMAL")  # with WAL a crash loses the last answers, never the file
    return connection


def _reader(path: Path) -> sqlite3.Connection:
    connection = _connect(path, "mode=ro")
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
        return connection
    except sqlite3.OperationalError:
        # On a read-only medium a WAL file cannot be read, unless SQLite knows that nobody else writes.
        connection.close()
        return _connect(path, "mode=ro&immutable=1")


def _found(connection: sqlite3.Connection, key: bytes) -> Observation | None:
    # All rows are fetched: an unfinished statement would hold the connection to an old state of the file.
    rows = connection.execute("SELECT text, ok, meta FROM answers WHERE key = ?", (key,)).fetchall()
    if not rows:
        return None
    text, ok, meta = rows[0]
    return Observation(text.decode("utf-8", "surrogatepass"), bool(ok), orjson.loads(meta))


def _json(value: JsonValue) -> str:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except TypeError:  # meta that no file can hold
        return "{}"


def _digest(value: list[JsonValue]) -> bytes:
    return blake2b(orjson.dumps(value, option=orjson.OPT_SORT_KEYS), digest_size=24).digest()
