"""What the pages ask the index: a page of the list, a search, the folders, counts for the filters."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NotRequired, TypedDict, cast

import orjson

from coa.view.filters import conditions, order, whole_number
from coa.view.index import PROGRESS
from coa.view.sources import Source

MOST_ROWS: Final = 500


class Row(TypedDict):
    """A run in the list. None is unknown."""

    id: str
    folder: str
    path: str
    task: str
    question: str
    answer: str | None
    expected: str
    profile: str
    kind: str
    stop: str
    outcome: str
    score: float | None
    reward: float | None
    advantage: float | None
    learnt: bool | None
    step: int | None
    group: int | None
    sample: int
    steps: int
    tool_calls: int
    tool_errors: int
    repairs: int
    prompt_tokens: int
    completion_tokens: int
    tokens: int
    seconds: float
    cost: float | None
    benchmark: str
    family: str
    agents: list[str]
    hits: NotRequired[list[dict[str, object]]]


class FolderRow(TypedDict):
    id: str
    path: str
    kind: str
    runs: int
    right: int
    scored: int
    tokens: int
    live: bool
    updated: float


@dataclass(frozen=True, slots=True)
class Page:
    total: int
    rows: list[Row]


@dataclass(frozen=True, slots=True)
class Place:
    """Where the record of a run is."""

    run: int
    uid: str
    source: Source
    folder: Path
    number: int
    place: int
    length: int
    profile_hash: str | None


_COLUMNS: Final = {"id": "runs.uid", "folder": "folders.uid", "path": "folders.shown", "kind": "runs.kind",
                   "step": "rl_step", "group": "grp"}  # fmt: skip
"""Fields of a row that have another name in the index."""
ROW_NAMES: Final = tuple(name for name in Row.__annotations__ if name != "hits")
_SELECT: Final = (
    "SELECT runs.id AS number, "
    + ", ".join(f'{_COLUMNS.get(name, name)} AS "{name}"' for name in ROW_NAMES)
    + " FROM runs JOIN texts USING (id) JOIN folders ON folders.id = runs.folder"
)


class Queries:
    """Questions to one index, through one connection."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._db = database

    def runs(self, query: Mapping[str, str]) -> Page:
        """A page of the list. A query that cannot be understood raises `ConfigError`."""
        where, values = conditions(query)
        limit, offset = whole_number(query, "limit", 50), whole_number(query, "offset", 0)
        total = self._count(where, values)
        ids = [number for (number,) in self._db.execute(
            f"SELECT id FROM runs {where} ORDER BY {order(query)} LIMIT ? OFFSET ?",
            (*values, min(limit, MOST_ROWS), offset),
        )]  # fmt: skip
        return Page(total, self.rows(ids))

    def rows(self, ids: list[int]) -> list[Row]:
        """These runs, in this order."""
        marks = ",".join("?" * len(ids))
        found = dict(self._numbered(f"WHERE runs.id IN ({marks})", tuple(ids)))
        return [found[number] for number in ids if number in found]

    def matching(self, condition: str, values: tuple[object, ...]) -> list[Row]:
        return [row for _, row in self._numbered(f"WHERE {condition}", values)]

    def _numbered(self, rest: str, values: tuple[object, ...]) -> list[tuple[int, Row]]:
        cursor = self._db.cursor()
        cursor.row_factory = sqlite3.Row
        return [(columns["number"], _row(columns)) for columns in cursor.execute(f"{_SELECT} {rest}", values)]

    def _count(self, where: str, values: tuple[object, ...]) -> int:
        (total,) = self._db.execute(f"SELECT count(*) FROM runs {where}", values).fetchone()
        return int(total)

    # ---- one run

    def place(self, uid: str) -> Place | None:
        row = self._db.execute(
            "SELECT runs.id, runs.uid, files.path, files.kind, parts, folders.path, number, place, length, "
            "profile_hash FROM runs JOIN texts USING (id) JOIN files ON files.id = runs.file "
            "JOIN folders ON folders.id = runs.folder WHERE runs.uid = ?",
            (uid,),
        ).fetchone()
        if row is None:
            return None
        run, found, path, kind, parts, folder, *rest = row
        file = _path(path)
        files = tuple(map(_path, parts.split(b"\x00"))) if parts else (file,)
        return Place(run, found, Source(file, files, kind), _path(folder), *rest)

    def row(self, uid: str) -> Row | None:
        return next(iter(self.matching("runs.uid = ?", (uid,))), None)

    def newest(self, folder: str, task: str, sample: int) -> str | None:
        """The id of the newest run of a task and sample in a folder."""
        condition = "folders.uid = ? AND task = ? AND sample = ? ORDER BY runs.id DESC LIMIT 1"
        return next((row["id"] for row in self.matching(condition, (folder, task, sample))), None)

    def same_task(self, row: Row, most: int = 60) -> list[Row]:
        """Other runs of the same task, those of the same folder first."""
        found = self.matching(
            "task = ? AND runs.uid != ? ORDER BY folders.uid != ?, runs.id LIMIT ?",
            (row["task"], row["id"], row["folder"], most),
        )
        return [other for other in found if other["question"] == row["question"]]

    def definition(self, key: str) -> str | None:
        row = self._db.execute("SELECT text FROM profiles WHERE hash = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def definitions(self) -> list[str]:
        return [text for (text,) in self._db.execute("SELECT text FROM profiles")]

    # ---- everything

    def folders(self) -> list[FolderRow]:
        counts = (
            "SELECT folder, count(*) AS runs, sum(outcome = 'right') AS hits, sum(tokens) AS tokens, "
            "sum(score IS NOT NULL OR outcome = 'right') AS scored FROM runs GROUP BY folder"
        )
        rows = self._db.execute(
            "SELECT uid, shown, kind, coalesce(runs, 0), coalesce(hits, 0), coalesce(scored, 0), coalesce(tokens, 0), "
            f"updated FROM folders LEFT JOIN ({counts}) AS counts ON counts.folder = folders.id ORDER BY shown"
        )
        return [
            FolderRow(id=uid, path=path, kind=kind, runs=runs, right=right, scored=scored, tokens=tokens, live=False,
                      updated=updated)
            for uid, path, kind, runs, right, scored, tokens, updated in rows
        ]  # fmt: skip

    def folder_path(self, uid: str) -> Path | None:
        row = self._db.execute("SELECT path FROM folders WHERE uid = ?", (uid,)).fetchone()
        return None if row is None else _path(row[0])

    def attempts(self, uid: str) -> list[tuple[int, str, bool | None]]:
        """Step, family and whether it is right, of every attempt in the groups of an RL run."""
        rows = self._db.execute(
            "SELECT rl_step, family, score >= 1 FROM runs WHERE folder = (SELECT id FROM folders WHERE uid = ?) "
            "AND rl_step IS NOT NULL",
            (uid,),
        )
        return [(step, family, None if right is None else bool(right)) for step, family, right in rows]

    def folder_paths(self) -> dict[str, tuple[str, Path]]:
        """How each folder is shown, and where it is, by its id."""
        rows = self._db.execute("SELECT uid, shown, path FROM folders")
        return {uid: (shown, _path(path)) for uid, shown, path in rows}

    def compared(self, folders: Sequence[str], only: str, offset: int, limit: int) -> dict[str, Any]:
        """The tasks that all of these folders have, with the runs of each.

        A folder solves a task if at least half of its attempts are right. The pattern of a task has a digit for each
        folder: `10` if the first solves it and the second does not. `only` is a pattern, or `disagree`.
        """
        place = "SELECT (SELECT id FROM folders WHERE uid = ?) AS folder, ? AS bit"
        places = " UNION ALL ".join([place] * len(folders))
        bits = [value for at, uid in enumerate(folders) for value in (uid, 1 << (len(folders) - 1 - at))]
        tasks = (
            f"WITH places AS ({places}), solved AS (SELECT task, bit, avg(outcome = 'right') >= 0.5 AS ok FROM places "
            "JOIN runs USING (folder) GROUP BY task, folder), tasks AS (SELECT task, sum(ok * bit) AS pattern FROM "
            f"solved GROUP BY task HAVING count(*) = {len(folders)})"
        )
        full = (1 << len(folders)) - 1
        rows = self._db.execute(f"{tasks} SELECT pattern, count(*) FROM tasks GROUP BY pattern", bits)
        patterns = {format(pattern, f"0{len(folders)}b"): count for pattern, count in rows}
        if only == "disagree":
            where, values = "WHERE pattern NOT IN (0, ?)", [full]
        elif only and len(only) == len(folders) and set(only) <= {"0", "1"}:
            where, values = "WHERE pattern = ?", [int(only, 2)]
        else:
            where, values = "", []
        total = self._db.execute(f"{tasks} SELECT count(*) FROM tasks {where}", (*bits, *values)).fetchone()[0]
        page = self._db.execute(
            f"{tasks} SELECT task, pattern FROM tasks {where} ORDER BY task LIMIT ? OFFSET ?",
            (*bits, *values, limit, offset),
        ).fetchall()
        found = [self._compared_task(task, pattern, folders) for task, pattern in page]
        counts = {
            "tasks": sum(patterns.values()),
            "patterns": patterns,
            "disagree": sum(count for pattern, count in patterns.items() if len(set(pattern)) > 1),
            "all_right": patterns.get("1" * len(folders), 0),
            "all_wrong": patterns.get("0" * len(folders), 0),
        }
        return {"counts": counts, "total": total, "offset": offset, "tasks": found}

    def _compared_task(self, task: str, pattern: int, folders: Sequence[str]) -> dict[str, Any]:
        marks = ",".join("?" * len(folders))
        rows = self.matching(f"task = ? AND folders.uid IN ({marks}) ORDER BY sample, runs.id", (task, *folders))
        return {
            "task": task,
            "question": rows[0]["question"] if rows else "",
            "pattern": format(pattern, f"0{len(folders)}b"),
            "runs": [[row for row in rows if row["folder"] == uid] for uid in folders],
        }

    def findings(self, scanner: str | None, offset: int, most: int = 200) -> dict[str, Any]:
        """Findings of scanners, the gravest first, with counts for each scanner."""
        totals = self._db.execute("SELECT scanner, count(*), count(DISTINCT run) FROM findings GROUP BY scanner")
        by_scanner = {name: {"findings": count, "runs": runs} for name, count, runs in totals}
        where, values = ("WHERE scanner = ?", (scanner,)) if scanner else ("", ())
        rows = self._db.execute(
            "SELECT runs.uid, step, scanner, severity, message, task, shown FROM findings "
            "JOIN runs ON runs.id = findings.run JOIN folders ON folders.id = runs.folder "
            f"{where} ORDER BY severity = 'info', severity = 'warning', findings.rowid LIMIT ? OFFSET ?",
            (*values, most, offset),
        )
        names = ("run", "step", "scanner", "severity", "message", "task", "path")
        return {
            "scanned": self._count(f"WHERE id <= {self.state('scanned')}", ()),
            "total": sum(one["findings"] for name, one in by_scanner.items() if scanner in (None, name)),
            "offset": offset,
            "by_scanner": by_scanner,
            "findings": [dict(zip(names, row, strict=True)) for row in rows],
        }

    def counts(self, column: str) -> dict[str, int]:
        """Number of runs for each value of a column that filters can choose."""
        rows = self._db.execute(
            f"SELECT {column}, count(*) FROM runs WHERE {column} != '' GROUP BY {column} ORDER BY 2 DESC LIMIT 200"
        )
        return dict(rows)

    def agents(self) -> dict[str, int]:
        rows = self._db.execute("SELECT tags.tag, count(*) FROM agents JOIN tags ON tags.id = agents.tag GROUP BY 1")
        return dict(rows)

    def steps(self) -> list[int] | None:
        low, high = self._db.execute("SELECT min(rl_step), max(rl_step) FROM runs").fetchone()
        return None if low is None else [low, high]

    def problems(self, most: int = 1000) -> list[dict[str, str]]:
        rows = self._db.execute("SELECT path, place, message FROM problems ORDER BY path, rowid LIMIT ?", (most,))
        return [{"file": path, "place": place, "message": message} for path, place, message in rows]

    def problem_count(self) -> int:
        (count,) = self._db.execute("SELECT count(*) FROM problems").fetchone()
        return int(count)

    def state(self, name: str) -> int:
        row = self._db.execute("SELECT value FROM state WHERE name = ?", (name,)).fetchone()
        return 0 if row is None else int(row[0])

    def progress(self) -> dict[str, object]:
        row = self._db.execute("SELECT value FROM state WHERE name = 'progress'").fetchone()
        empty = {**dict.fromkeys(PROGRESS, 0), "busy": True}
        found: dict[str, object] = {**empty, **(orjson.loads(row[0]) if row is not None else {})}
        return {**found, "runs": self._count("", ())}


def _path(encoded: bytes) -> Path:
    return Path(os.fsdecode(encoded))


def _row(columns: sqlite3.Row) -> Row:
    row: dict[str, Any] = {name: columns[name] for name in ROW_NAMES}
    learnt = row["learnt"]
    return cast(Row, {**row, "learnt": None if learnt is None else bool(learnt), "agents": row["agents"].split()})
