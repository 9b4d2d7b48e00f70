"""The index of the viewer: a SQLite file with a row for every run, and a full-text index of what the runs say.

The runs themselves stay in their files; a row says where its record is (byte offset in JSONL, row group and row in
Parquet). The index is in a cache folder and can be deleted at any time. One process writes it (`updating.py`), any
number read it; in WAL mode neither waits for the other.

The full-text table keeps no text (`content=''`), so nothing can be deleted from it: rows of a file that was replaced
get new ids, and the words of the old ids are dead. `dead` counts them; the index is made anew when most are.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

import orjson

from coa.addresses import folder_id
from coa.errors import StoreError, refused
from coa.folder import cache_place
from coa.trajectory.definitions import remember
from coa.view.rows import IndexedRow, RowTexts, RowValues

VERSION: Final = 1
_CACHE_KIB: Final = 32 << 10
_SCHEMA: Final = f"""
CREATE TABLE IF NOT EXISTS state (name TEXT PRIMARY KEY, value);
CREATE TABLE IF NOT EXISTS folders (id INTEGER PRIMARY KEY, uid TEXT UNIQUE, path BLOB, shown TEXT, kind TEXT,
  updated REAL);
CREATE TABLE IF NOT EXISTS files (id INTEGER PRIMARY KEY, path BLOB UNIQUE, folder INTEGER, kind TEXT, size INTEGER,
  changed INTEGER, inode INTEGER, done INTEGER, records INTEGER, tail BLOB, parts BLOB);
CREATE TABLE IF NOT EXISTS problems (file INTEGER, path TEXT, place TEXT, message TEXT);
CREATE INDEX IF NOT EXISTS problems_of_file ON problems (file);
CREATE TABLE IF NOT EXISTS profiles (hash TEXT PRIMARY KEY, text TEXT);
CREATE TABLE IF NOT EXISTS runs (id INTEGER PRIMARY KEY, uid TEXT, file INTEGER, folder INTEGER, number INTEGER,
  place INTEGER, length INTEGER, kind TEXT, {", ".join(RowValues._fields)});
CREATE INDEX IF NOT EXISTS runs_uid ON runs (uid);
CREATE INDEX IF NOT EXISTS runs_file ON runs (file);
CREATE INDEX IF NOT EXISTS runs_task ON runs (task, folder, outcome);
CREATE INDEX IF NOT EXISTS runs_folder ON runs (folder, outcome);
CREATE TABLE IF NOT EXISTS texts (id INTEGER PRIMARY KEY, {", ".join(RowTexts._fields)});
CREATE TABLE IF NOT EXISTS tags (id INTEGER PRIMARY KEY, tag TEXT UNIQUE);
CREATE TABLE IF NOT EXISTS agents (tag INTEGER, run INTEGER, PRIMARY KEY (tag, run)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS findings (run INTEGER, step INTEGER, scanner TEXT, severity TEXT, message TEXT);
CREATE INDEX IF NOT EXISTS findings_of_run ON findings (run);
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5(question, steps, observations, content='', columnsize=0,
  tokenize='unicode61 remove_diacritics 2');
"""
_FULL_TEXT: Final = {"hashsize": 32 << 20, "automerge": 16}
"""Words are collected in memory and written in few large pieces, which are merged seldom; SQLite's defaults
are slower."""
PROGRESS: Final = ("busy", "files", "files_total", "bytes", "bytes_total", "runs")
"""What is known about indexing while it goes on."""
_COLUMNS: Final = f"id, uid, file, folder, number, place, length, kind, {', '.join(RowValues._fields)}"
_MARKS: Final = ",".join("?" * (8 + len(RowValues._fields)))


def cache_file(roots: Sequence[Path], cache: Path | None = None) -> Path:
    """Where the index of these folders is: one file for each set of them."""
    cache = cache_place("view") if cache is None else cache
    named = "\n".join(sorted(str(root.resolve()) for root in roots))
    return cache / f"{hashlib.blake2b(named.encode('utf-8', 'surrogateescape'), digest_size=8).hexdigest()}.sqlite"


def connect(path: Path, *, write: bool = False) -> sqlite3.Connection:
    """A connection to the index. The writer makes the file, and replaces one of another version or a damaged one."""
    try:
        if not write:
            found = sqlite3.connect(
                f"file:{quote(bytes(path))}?mode=ro", uri=True, check_same_thread=False, timeout=10.0
            )
            found.execute("PRAGMA query_only=1")
            return found
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # it repeats what runs say
        try:
            return _prepared(path)
        except sqlite3.DatabaseError:
            remove(path)
            return _prepared(path)
    except OSError as error:
        raise refused(f"write the index {path}", error) from error
    except sqlite3.Error as error:
        raise StoreError(f"the index {path} cannot be opened: {error}", hint="choose another --cache") from error


def _prepared(path: Path) -> sqlite3.Connection:
    found = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10.0)
    try:
        found.execute("PRAGMA journal_mode=WAL")
        found.execute("PRAGMA synchronous=OFF")  # after a power failure it is made again
        found.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
        (version,) = found.execute("PRAGMA user_version").fetchone()
        if version not in (0, VERSION):
            raise sqlite3.DatabaseError("another version")
        found.executescript(_SCHEMA)
        for setting, value in _FULL_TEXT.items():
            found.execute("INSERT INTO words (words, rank) VALUES (?, ?)", (setting, value))
        found.execute(f"PRAGMA user_version={VERSION}")
    except BaseException:
        found.close()
        raise
    return found


def remove(path: Path) -> None:
    for ending in ("", "-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)


class FileState(NamedTuple):
    """What the index knows of a file."""

    id: int
    path: str
    folder: int
    kind: str
    size: int
    changed: int
    inode: int
    done: int
    """Number of bytes (JSONL) or other units that are indexed."""
    records: int
    """Number of records that were read, damaged ones included."""
    tail: bytes | None
    """Hash of the last bytes that were indexed: if they are different now, the file was replaced."""
    parts: bytes
    """The files of a source that is scattered over several, separated by NUL; empty for a single file."""


class IndexWriter:
    """The one writer of an index."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._db = connect(path, write=True)
        (last,) = self._db.execute("SELECT coalesce(max(id), 0) FROM runs").fetchone()
        self._last: int = max(last, self.state("last", 0))
        self._tags: dict[str, int] = dict(self._db.execute("SELECT tag, id FROM tags"))
        self._profiles = {key for (key,) in self._db.execute("SELECT hash FROM profiles")}
        self._dead: int = self.state("dead", 0)

    def close(self) -> None:
        self._db.close()

    @property
    def connection(self) -> sqlite3.Connection:
        """To read what is written."""
        return self._db

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Changes that become visible together, as one revision."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._set("last", self._last)
        self._set("dead", self._dead)
        self._set("revision", self.state("revision", 0) + 1)
        self._db.execute("COMMIT")

    def state(self, name: str, default: int) -> int:
        row = self._db.execute("SELECT value FROM state WHERE name = ?", (name,)).fetchone()
        return default if row is None else int(row[0])

    def _set(self, name: str, value: object) -> None:
        self._db.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (name, value))

    def progress(self, values: Mapping[str, int]) -> None:
        self._set("progress", orjson.dumps(dict(values)).decode())

    # ---- folders and files

    def folder(self, path: Path, shown: str, kind: str, updated: float) -> int:
        uid = folder_id(path)
        self._db.execute(
            "INSERT INTO folders (uid, path, shown, kind, updated) VALUES (?, ?, ?, ?, ?) ON CONFLICT (uid) DO UPDATE "
            "SET shown = excluded.shown, kind = excluded.kind, updated = excluded.updated",
            (uid, os.fsencode(path), _text(shown), kind, updated),
        )
        (found,) = self._db.execute("SELECT id FROM folders WHERE uid = ?", (uid,)).fetchone()
        return int(found)

    def folders(self) -> dict[str, tuple[int, str, float]]:
        """Id, kind and time of each folder by its path."""
        rows = self._db.execute("SELECT path, id, kind, updated FROM folders")
        return {os.fsdecode(path): (number, kind, updated) for path, number, kind, updated in rows}

    def drop_folder(self, number: int) -> None:
        self._db.execute("DELETE FROM folders WHERE id = ?", (number,))

    def files(self) -> dict[str, FileState]:
        rows = self._db.execute(f"SELECT {', '.join(FileState._fields)} FROM files")
        found = (state._replace(path=os.fsdecode(state.path)) for state in map(FileState._make, rows))
        return {state.path: state for state in found}

    def put_file(self, state: FileState) -> FileState:
        """Remember how far a file is indexed; a new one (id 0) gets an id."""
        values = (os.fsencode(state.path), *state[2:])
        if state.id == 0:
            marks = ",".join("?" * (len(FileState._fields) - 1))
            (found,) = self._db.execute(
                f"INSERT INTO files ({', '.join(FileState._fields[1:])}) VALUES ({marks}) RETURNING id", values
            ).fetchone()
            return state._replace(id=int(found))
        changes = ", ".join(f"{name} = ?" for name in FileState._fields[1:])
        self._db.execute(f"UPDATE files SET {changes} WHERE id = ?", (*values, state.id))
        return state

    def forget_runs(self, file: int) -> None:
        """Remove the rows and problems of a file that will be read again, or is gone."""
        (count,) = self._db.execute("SELECT count(*) FROM runs WHERE file = ?", (file,)).fetchone()
        for table, column in (("texts", "id"), ("findings", "run")):
            self._db.execute(f"DELETE FROM {table} WHERE {column} IN (SELECT id FROM runs WHERE file = ?)", (file,))
        for (tag,) in self._db.execute("SELECT id FROM tags").fetchall():
            self._db.execute(
                "DELETE FROM agents WHERE tag = ? AND run IN (SELECT id FROM runs WHERE file = ?)", (tag, file)
            )
        self._db.execute("DELETE FROM runs WHERE file = ?", (file,))
        self._db.execute("DELETE FROM problems WHERE file = ?", (file,))
        self._dead += count

    def drop_file(self, file: int) -> None:
        self.forget_runs(file)
        self._db.execute("DELETE FROM files WHERE id = ?", (file,))

    def problem(self, file: int, path: str, place: str, message: str) -> None:
        self._db.execute("INSERT INTO problems VALUES (?, ?, ?, ?)", (file, _text(path), place, _text(message)))

    def clear_problems(self, file: int, place: str) -> bool:
        """Whether there was one."""
        return self._db.execute("DELETE FROM problems WHERE file = ? AND place = ?", (file, place)).rowcount > 0

    @property
    def mostly_dead(self) -> bool:
        (alive,) = self._db.execute("SELECT count(*) FROM runs").fetchone()
        return self._dead > 10_000 and self._dead > alive

    # ---- runs

    def add(self, state: FileState, uid: str, number: int, place: int, length: int, kind: str, row: IndexedRow) -> None:
        self._last += 1
        at = self._last
        texts = row.texts._replace(agents=" ".join(row.texts.agents))  # type: ignore[arg-type]
        self._db.execute(
            f"INSERT INTO runs ({_COLUMNS}) VALUES ({_MARKS})",
            (at, uid, state.id, state.folder, number, place, length, kind, *row.values),
        )
        self._db.execute("INSERT INTO texts VALUES (?,?,?,?,?,?)", (at, *texts))
        self._db.executemany("INSERT INTO agents VALUES (?, ?)", [(self._tag(tag), at) for tag in row.texts.agents])
        self._db.execute("INSERT INTO words (rowid, question, steps, observations) VALUES (?,?,?,?)", (at, *row.search))

    def undo_add(self) -> None:
        """Take back what `add` has written of a record that it refused in the middle."""
        for table, column in (("runs", "id"), ("texts", "id"), ("agents", "run")):
            self._db.execute(f"DELETE FROM {table} WHERE {column} = ?", (self._last,))

    def score(self, file: int, task: str, sample: int, score: float | None, outcome: str | None) -> None:
        """A verdict that came after its run."""
        self._db.execute(
            "UPDATE runs SET score = ?, outcome = coalesce(?, outcome) WHERE task = ? AND file = ? AND sample = ?",
            (score, outcome, task, file, sample),
        )

    def answer_and_stop(self, file: int, task: str, sample: int) -> tuple[str | None, str] | None:
        found: tuple[str | None, str] | None = self._db.execute(
            "SELECT answer, stop FROM runs JOIN texts USING (id) WHERE task = ? AND file = ? AND sample = ?",
            (task, file, sample),
        ).fetchone()
        return found

    def profile(self, text: str) -> None:
        """Keep the definition of a profile: only the first record of a file has it."""
        key = remember(text)
        if key not in self._profiles:
            self._profiles.add(key)
            self._db.execute("INSERT OR IGNORE INTO profiles VALUES (?, ?)", (key, text))

    def _tag(self, tag: str) -> int:
        number = self._tags.get(tag)
        if number is None:
            (number,) = self._db.execute("INSERT INTO tags (tag) VALUES (?) RETURNING id", (tag,)).fetchone()
            self._tags[tag] = number
        return number

    # ---- findings

    def unscanned(self, after: int, most: int) -> list[tuple[int, str]]:
        """Ids and addresses of the next runs after this id."""
        rows = self._db.execute("SELECT id, uid FROM runs WHERE id > ? ORDER BY id LIMIT ?", (after, most))
        return rows.fetchall()

    def find(self, findings: Iterable[tuple[int, int | None, str, str, str]], scanned_up_to: int) -> None:
        rows = [(run, step, scanner, severity, _text(message)) for run, step, scanner, severity, message in findings]
        self._db.executemany("INSERT INTO findings VALUES (?, ?, ?, ?, ?)", rows)
        self._set("scanned", scanned_up_to)


def _text(text: str) -> str:
    """File names may hold bytes that are no UTF-8, which SQLite does not take."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
