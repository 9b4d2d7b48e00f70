"""Brings the index up to date with the files: adds what is new, reads again what changed, removes what is gone.

A JSONL file that grew is read on from where it ended. One that was replaced (an evaluation writes its verdicts into the
trajectories at the end) is read again as a whole; so is every other kind of file that changed.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from coa.errors import CoaError
from coa.trajectory.identity import run_ids
from coa.view.index import PROGRESS, FileState, IndexWriter
from coa.view.readers import Found, changes_beside, has_changes_apart, is_continued, records
from coa.view.rows import Unreadable, indexed_row, outcome_of
from coa.view.run_folders import find_run_folders, folder_of, scorer_of
from coa.view.sources import Looked, Source, find_sources

log = logging.getLogger(__name__)
FIRST_BATCH_BYTES: Final = 1 << 20
BATCH_BYTES: Final = 32 << 20
"""Size of what becomes visible together. The first batches are small, so that there is something to look at at once;
later ones are as large as what the full-text index holds in memory."""
_SIZE_OF_OTHERS: Final = 16 << 10
"""Assumed size of a record whose size in its file is not known."""
_TAIL: Final = 512
_PROBLEMS_OF_FILE: Final = 100
JOURNAL: Final = "scores.jsonl"
"""Verdicts of an evaluation that is still going on; at its end they move into the trajectories."""


class Stat(NamedTuple):
    size: int
    changed: int
    inode: int


class Updater:
    """Keeps one index up to date. `update` is one pass over all files."""

    def __init__(self, writer: IndexWriter, roots: Sequence[Path]) -> None:
        self._writer, self._roots = writer, [root.resolve() for root in roots]
        self._names = _shown_names(self._roots)
        self._looked: Looked = {}
        self._scorers: dict[Path, str | None] = {}
        self._journals: dict[Path, int] = {}
        """How much of each journal was read."""
        self._progress: dict[str, int] = dict.fromkeys(PROGRESS, 0)
        self._settled = False
        """Whether the index says that nothing is going on."""

    def update(self) -> bool:
        """Whether anything has changed."""
        known = self._writer.files()
        sources = {str(source.path): source for root in self._roots for source in _sources(root, self._looked)}
        stats = {path: _stat(source) for path, source in sources.items()}
        waiting = [path for path in sources if self._has_changed(sources[path], known.get(path), stats[path])]
        gone = [state for path, state in known.items() if path not in sources]
        self._progress |= {
            "files_total": len(sources),
            "files": len(sources) - len(waiting),
            "bytes_total": sum(stat.size for stat in stats.values()),
            "bytes": sum(stats[path].size for path in sources if path not in set(waiting)),
        }
        self._progress["busy"] = bool(waiting)
        changed = self._update_folders() | bool(waiting or gone)
        if gone:
            with self._writer.batch():
                for state in gone:
                    self._writer.drop_file(state.id)
        for path in waiting:
            self._read(sources[path], known.get(path), stats[path])
        changed |= self._read_journals()
        if changed or not self._settled:
            self._settled, self._progress["busy"] = True, False
            with self._writer.batch():
                self._writer.progress(self._progress)
        return changed

    @staticmethod
    def _has_changed(source: Source, state: FileState | None, stat: Stat) -> bool:
        if state is None:
            return True
        return (state.size, state.changed, state.inode, state.kind) != (*stat, source.kind)

    # ---- folders

    def _update_folders(self) -> bool:
        before = self._writer.folders()
        found = {str(folder.path): folder for root in self._roots for folder in find_run_folders(root)}
        new = {
            path: folder
            for path, folder in found.items()
            if path not in before or before[path][1:] != (folder.kind, folder.updated)
        }
        holding = {state.folder for state in self._writer.files().values()}
        gone = [row[0] for path, row in before.items() if path not in found and row[0] not in holding]
        if not new and not gone:
            return False
        with self._writer.batch():
            for folder in new.values():
                self._scorers.pop(folder.path, None)
                self._writer.folder(folder.path, self.shown(folder.path), folder.kind, folder.updated)
            for number in gone:
                self._writer.drop_folder(number)
        return True

    def _folder(self, source: Source) -> int:
        path = folder_of(source.path)
        found = self._writer.folders().get(str(path))
        if found is not None:
            return found[0]
        kind = {"traces": "traces", "serve": "serve"}.get(source.kind, "data")
        return self._writer.folder(path, self.shown(path), kind, time.time())

    def shown(self, path: Path) -> str:
        """A path as the viewer shows it: the name of a root, then the path below it."""
        for root, name in self._names.items():
            if path == root:
                return name
            if path.is_relative_to(root):
                return f"{name}/{path.relative_to(root)}"
        return str(path)

    # ---- files

    def _read(self, source: Source, state: FileState | None, stat: Stat) -> None:
        path = str(source.path)
        continued = state is not None and is_continued(source) and _continues(source.path, state, stat)
        before = state if state is not None and continued else None
        with self._writer.batch():
            folder = self._folder(source)
            if state is not None and not continued:
                self._writer.forget_runs(state.id)
            parts = b"" if source.files == (source.path,) else b"\x00".join(map(os.fsencode, source.files))
            blank = FileState(state.id if state else 0, path, folder, source.kind, 0, 0, 0, 0, 0, None, parts)
            now = self._writer.put_file(before or blank)
            self._writer.clear_problems(now.id, "")
            self._writer.clear_problems(now.id, "end")
        if source.problem is not None:
            now = self._finish(source, now._replace(kind=source.kind), stat, source.problem)
            return
        problem = ""
        try:
            now = self._add(source, now)
        except Exception as error:  # the border to files of any content: one must not keep the others from being read
            problem = _said(error)
            now = self._writer.files().get(path, now)
        self._finish(source, now, stat, problem)

    def _add(self, source: Source, state: FileState) -> FileState:
        """Add the records of a file, some at a time, so that the list can be used meanwhile."""
        scorer, named = self._scorer(source), run_ids(source.path)
        found, room, more = records(source, state.done, state.records), FIRST_BATCH_BYTES, True
        while more:
            with self._writer.batch():
                size, more = 0, False
                for one in found:
                    self._add_record(source, state, one, named(one.number), scorer)
                    state = state._replace(done=one.done, records=one.number + 1)
                    size += one.length if is_continued(source) else _SIZE_OF_OTHERS
                    if size >= room:
                        more = True
                        break
                self._progress["bytes"] += size if is_continued(source) else 0
                self._writer.put_file(state)
                self._writer.progress(self._progress)
            room = min(room * 2, BATCH_BYTES)
        return state

    def _add_record(self, source: Source, state: FileState, found: Found, uid: str, scorer: str | None) -> None:
        record = found.record
        if not isinstance(record, Unreadable):
            if isinstance(text := record.get("profile_definition"), str):
                self._writer.profile(text)
            try:
                row = indexed_row(record, scorer)
                self._writer.add(state, uid, found.number, found.place, found.length, found.kind, row)
                self._progress["runs"] += 1
                return
            except Unreadable as error:
                record = error
            except (TypeError, ValueError, OverflowError, sqlite3.Error) as error:
                self._writer.undo_add()
                record = Unreadable(f"the record cannot be indexed: {error}")
        place = "line" if is_continued(source) else "record"
        self._writer.problem(state.id, self.shown(source.path), f"{place} {found.number + 1}", str(record))

    def _finish(self, source: Source, state: FileState, stat: Stat, problem: str) -> FileState:
        """Note how far the file is read, and what is wrong with its end or with all of it."""
        shown, tail = self.shown(source.path), None
        with self._writer.batch():
            if problem:
                self._writer.problem(state.id, shown, "", problem)
            elif is_continued(source):
                tail = _tail(source.path, state.done)
                if (left := stat.size - state.done) > 0 and not _is_blank(source.path, state.done):
                    torn = f"the last line is not complete ({left:,} bytes); it is being written, or its writer died"
                    self._writer.problem(state.id, shown, "end", torn)
            self._progress["files"] += 1
            if not is_continued(source):
                self._progress["bytes"] += stat.size
            return self._writer.put_file(
                state._replace(kind=source.kind, size=stat.size, changed=stat.changed, inode=stat.inode, tail=tail)
            )

    def _scorer(self, source: Source) -> str | None:
        folder = folder_of(source.path)
        if folder not in self._scorers:
            self._scorers[folder] = scorer_of(folder)
        return self._scorers[folder]

    # ---- verdicts of evaluations that are going on

    def _read_journals(self) -> bool:
        changed = False
        for path, state in self._writer.files().items():
            journal = Path(path).with_name(JOURNAL)
            if state.kind != "jsonl" or Path(path).name != "trajectories.jsonl" or not journal.is_file():
                self._journals.pop(journal, None)
                continue
            changed |= self._read_journal(journal, state)
        return changed

    def _read_journal(self, journal: Path, state: FileState) -> bool:
        try:
            with journal.open("rb") as file:
                file.seek(self._journals.get(journal, 0))
                text = file.read()
        except OSError:
            return False
        whole = text[: text.rfind(b"\n") + 1]
        if not whole:
            return False
        scorer = scorer_of(Path(state.path).parent)
        with self._writer.batch():
            for line in whole.splitlines():
                self._apply_verdict(line, state, scorer)
        self._journals[journal] = self._journals.get(journal, 0) + len(whole)
        return True

    def _apply_verdict(self, line: bytes, state: FileState, scorer: str | None) -> None:
        try:
            row = orjson.loads(line)
            scores = row.get("scores", {})
            found = scores.get(scorer) or next(iter(scores.values()))
            task, sample, value = str(row["task"]), int(row["sample"]), found["value"]
        except (ValueError, KeyError, TypeError, AttributeError, StopIteration):
            return
        run = self._writer.answer_and_stop(state.id, task, sample)
        if run is not None:
            self._writer.score(state.id, task, sample, value, outcome_of(value, *run))


def _sources(root: Path, looked: Looked) -> Iterator[Source]:
    """Nothing if the root was deleted while it is viewed, or is not there yet."""
    return find_sources(root, looked) if root.exists() else iter(())


def _stat(source: Source) -> Stat:
    """Of a source in several files: their sizes together and the newest change."""
    size = changed = inode = 0
    beside = [changes_beside(source.path)] if source.kind == "serve" and has_changes_apart(source.path) else []
    for file in (*source.files, *beside):
        try:
            found = os.stat(file)
        except OSError:
            continue
        size += found.st_size
        changed = max(changed, found.st_mtime_ns)
        inode ^= found.st_ino
    return Stat(size, changed, inode)


def _continues(path: Path, state: FileState, stat: Stat) -> bool:
    """Whether the file still begins with what is indexed of it."""
    if stat.size < state.done or stat.inode != state.inode or state.tail is None:
        return False
    return _tail(path, state.done) == state.tail


def _said(error: Exception) -> str:
    if isinstance(error, CoaError):
        return error.message
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    log.warning("a file cannot be indexed", exc_info=error)
    return f"cannot be indexed: {type(error).__name__}: {error}"


def _is_blank(path: Path, start: int) -> bool:
    """Whether nothing but line breaks follows."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            return not file.read(_TAIL).strip()
    except OSError:
        return False


def _tail(path: Path, done: int) -> bytes | None:
    try:
        with path.open("rb") as file:
            start = max(done - _TAIL, 0)
            file.seek(start)
            return hashlib.blake2b(file.read(done - start), digest_size=16).digest()
    except OSError:
        return None


def _shown_names(roots: Sequence[Path]) -> dict[Path, str]:
    """A short name for each root, or the folder of a root that is a file: the last part of its path, and more of it
    where two are alike."""
    names: dict[Path, str] = {}
    for root in roots:
        folder = root.parent if root.is_file() else root
        parts = folder.parts
        candidates = ("/".join(parts[-count:]) for count in range(1, len(parts) + 1))
        names[folder] = next((name for name in candidates if name not in names.values()), str(folder))
    return names
