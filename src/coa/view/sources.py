"""What the viewer can show below a folder: files of trajectories, traces of teams, and the runs that a server stored.

Only names and the beginnings of files are read, so that a tree of thousands of files is listed in a second. Models,
worlds, tasks, reports and hidden files are no sources. A file that looks like data and cannot be read is one, with its
problem, so that the viewer can say so.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, Literal

import pyarrow as pa

from coa.distill.importers.detect import FORMATS, format_of
from coa.distill.importers.json_files import FAULTS, Bad
from coa.distill.importers.trace_format import TraceFormat
from coa.distill.importers.trajectory_rows import AFM, OWN
from coa.distill.run_files import ARCHIVE, ATIF, CALLS
from coa.errors import CoaError, nothing_at
from coa.trajectory.formats.rows import read_rows
from coa.trajectory.store import NAMES, OWN_FILES, is_trajectory_parquet
from coa.view.beginnings import LOOKED_AT, first_values

Kind = Literal["jsonl", "parquet", "json", "traces", "serve", "alpaca", "unknown"]
_ENDINGS: Final = (".jsonl", ".ndjson", ".json", ".otlp", ".parquet", ARCHIVE)
_SERVED: Final = "runs.sqlite"
_SQLITE: Final = b"SQLite format 3\x00"
_WORLD: Final = "world.json"
_OF_A_WORLD: Final = frozenset({"pages", "index", "tasks"})
_FOREIGN: Final = frozenset({"node_modules", "__pycache__"})
_UNREADABLE: Final = (OSError, CoaError, *FAULTS, pa.ArrowException, EOFError, zlib.error)


@dataclass(frozen=True, slots=True)
class Source:
    """A file with runs, or the files over which one run is scattered."""

    path: Path
    """What the ids of its runs are made of: the file, or the folder above the files of a scattered run."""
    files: tuple[Path, ...]
    """Every file that it is read from: it changed if one of them did."""
    kind: Kind
    """`jsonl`, `parquet` and `json` (a list) hold trajectories, `alpaca` holds rows of AFM, `serve` is the database of
    `coa serve`. `traces` is everything that `teams.team_runs_in` reads: runs of teams and, rarely, trajectories.
    `unknown` only if there is a problem."""
    problem: str | None = None
    """Why it cannot be read. Its kind is then a guess."""


Looked = dict[Path, tuple[int, int, Source | None]]
"""What files held when they were last looked at: time of their last change, size, and what was found."""


def find_sources(root: Path, looked: Looked | None = None) -> Iterator[Source]:
    """The sources below a folder, or in a file, in the order of their paths; those scattered over files come last.

    Nothing that a file or a folder holds raises an error. With `looked`, which is kept up to date, files that have not
    changed since are not opened again.
    """
    if root.is_dir():
        yield from _joined(_files(root), looked if looked is not None else {})
    elif root.is_file():
        named = source_of(root)
        yield named or Source(root, (root,), "unknown", "it holds neither trajectories nor traces of a team")
    else:
        raise nothing_at(root)


def source_of(file: Path) -> Source | None:
    """What a file holds, by its name and its beginning; None if it holds no runs."""
    kind = _by_name(file)
    try:
        size = file.stat().st_size
        if kind is None and size == 0:
            return Source(file, (file,), _guess(file), "the file is empty")
        if kind == "serve" and size and not _begins(file, _SQLITE):
            return Source(file, (file,), kind, "it is not an SQLite database")
        if kind is None:
            kind = _of_parquet(file) if file.suffix.lower() == ".parquet" else _by_content(file)
    except _UNREADABLE as error:
        return Source(file, (file,), _guess(file), _reason(error))
    return Source(file, (file,), kind) if kind is not None else None


def _by_name(file: Path) -> Kind | None:
    if file.name == _SERVED:
        return "serve"
    if file.name == NAMES[0]:
        return "jsonl"
    return "traces" if file.name.endswith((ATIF, CALLS)) else None


def _by_content(file: Path) -> Kind | None:
    """By the first value that is recognised. A file in which no value is JSON looks like data and raises an error."""
    if file.suffix.lower() == ARCHIVE:
        return "traces"
    faults: list[str] = []
    others = 0
    for value in first_values(file):
        if isinstance(value, Bad):
            faults.append(value.reason)
        elif (kind := _of_value(value, file)) is not None:
            return kind
        else:
            others += 1
    if faults and not others:
        raise CoaError(faults[0])
    return None


def _of_value(value: object, file: Path) -> Kind | None:
    rows = file.suffix.lower() in (".jsonl", ".ndjson")
    found = _format(value)
    if found is AFM and file.suffix.lower() != ".gz":
        return "alpaca"
    if found is OWN:
        if isinstance(value, list):
            return "json" if file.suffix.lower() == ".json" else "traces"
        return "jsonl" if rows else "traces"
    if found is not None:
        return "traces"
    # A version of the schema that this coa may not know; the reader says so.
    versioned = isinstance(value, Mapping) and isinstance(value.get("schema_version"), int)
    return "jsonl" if rows and versioned else None


def _of_parquet(file: Path) -> Kind | None:
    if is_trajectory_parquet(file):
        return "parquet"
    rows = islice(read_rows(file), LOOKED_AT)
    found = next((kind for row in rows if (kind := _format(row)) is not None), None)
    return "alpaca" if found is AFM else "traces" if found is not None else None


def _format(value: object) -> TraceFormat | None:
    try:
        return format_of(value)
    except FAULTS:
        return None


def _guess(file: Path) -> Kind:
    kinds: dict[str, Kind] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".json": "json"}
    return kinds.get(file.suffix.lower(), "traces")


def _reason(error: BaseException) -> str:
    if isinstance(error, CoaError):
        return error.message
    if isinstance(error, gzip.BadGzipFile | EOFError | zlib.error):
        return f"damaged gzip data: {error}"
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    return f"a shape that is not understood ({type(error).__name__}: {error})"


def _begins(file: Path, mark: bytes) -> bool:
    with file.open("rb") as opened:
        return opened.read(len(mark)) == mark


# ---- the tree


def _files(root: Path) -> Iterator[Path | Source]:
    """Files that may be sources, and folders that cannot be read."""
    waiting = [root]
    seen: set[tuple[int, int]] = set()
    while waiting:
        folder = waiting.pop()
        try:
            about = folder.stat()
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            yield Source(folder, (), "unknown", _reason(error))
            continue
        if (about.st_dev, about.st_ino) in seen:  # a link to a folder above it, or the same folder twice
            continue
        seen.add((about.st_dev, about.st_ino))
        names = {entry.name for entry in entries}
        skipped = _FOREIGN | (_OF_A_WORLD if _WORLD in names else frozenset())
        model = any(name.endswith(".safetensors") for name in names)
        below = []
        for entry in entries:
            if entry.name.startswith(".") or entry.name in skipped:
                continue
            if _is_folder(entry):
                below.append(Path(entry.path))
            elif not model and _may_hold_runs(entry.name, names) and _is_file(entry):
                yield Path(entry.path)
        waiting += reversed(below)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:
        return False


def _may_hold_runs(name: str, beside: set[str]) -> bool:
    if name == _SERVED:
        return True
    if name in OWN_FILES or (name == NAMES[1] and NAMES[0] in beside):
        return False
    return name.lower().removesuffix(".gz").endswith(_ENDINGS)


def _joined(found: Iterator[Path | Source], looked: Looked) -> Iterator[Source]:
    """Files that hold one run together become one source."""
    scattered: dict[Path, list[Path]] = {}
    for item in found:
        if isinstance(item, Source):
            yield item
        elif any(known.file_names is not None and known.file_names.fullmatch(item.name) for known in FORMATS):
            scattered.setdefault(item.parent.parent, []).append(item)
        elif _session_of(item) is None and (source := _look(item, looked)) is not None:
            yield _with_helpers(source)
    for folder, files in scattered.items():
        parts = [source for file in files if (source := _look(file, looked)) is not None]
        if any(source.problem is None for source in parts):
            yield Source(folder, tuple(files), "traces")
        else:
            yield from parts


def _look(file: Path, looked: Looked) -> Source | None:
    try:
        about = file.stat()
    except OSError:
        return source_of(file)
    before = looked.get(file)
    if before is None or before[:2] != (about.st_mtime_ns, about.st_size):
        before = looked[file] = (about.st_mtime_ns, about.st_size, source_of(file))
    return before[2]


def _session_of(file: Path) -> Path | None:
    """The session of Claude Code that the file of a sub-agent belongs to, where it is there."""
    if file.parent.name != "subagents" or not file.name.startswith("agent-"):
        return None
    session = file.parent.parent.with_name(file.parent.parent.name + ".jsonl")
    return session if session.is_file() else None


def _with_helpers(source: Source) -> Source:
    """A session of Claude Code with the files of its sub-agents."""
    folder = source.path.with_suffix("") / "subagents"
    if source.kind != "traces" or source.path.suffix != ".jsonl" or not folder.is_dir():
        return source
    return Source(source.path, (source.path, *sorted(folder.glob("agent-*"))), source.kind, source.problem)
