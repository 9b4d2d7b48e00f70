"""What the pages ask the index: a page of the list, a search, the folders, counts for the filters."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NotRequired, TypedDict

import orjson

from coa.errors import ConfigError
from coa.view.rows import spaced
from coa.view.sources import Source

MOST_ROWS: Final = 500
_TERMS: Final = re.compile(r'"([^"]*)"|(\S+)')
_SCOPES: Final = ("question", "steps", "observations")
SORTS: Final = {
    "added": "id", "task": "task", "outcome": "outcome", "stop": "stop", "score": "score", "tokens": "tokens",
    "tool_calls": "tool_calls", "tool_errors": "tool_errors", "seconds": "seconds", "cost": "cost", "steps": "steps",
    "repairs": "repairs", "reward": "reward", "advantage": "advantage", "step": "rl_step", "sample": "sample",
}  # fmt: skip
"""What the list can be sorted by; with a minus sign, from the largest."""
_EQUAL: Final = {"outcome": "outcome", "stop": "stop", "benchmark": "benchmark", "family": "family", "task": "task"}
_LISTS: Final = ("outcome", "stop")
"""Filters that take several values, separated by commas."""
_WHOLE: Final = {"step": "rl_step = ?", "group": "grp = ?", "min_tokens": "tokens >= ?", "max_tokens": "tokens <= ?",
                 "sample": "sample = ?"}  # fmt: skip
_FLAGS: Final = {"tool_error": "tool_errors > 0", "repaired": "repairs > 0", "learnt": "learnt = 1"}
PARAMETERS: Final = frozenset({*_EQUAL, *_WHOLE, *_FLAGS, "folder", "agent", "q", "in", "finding", "sort", "offset",
                               "limit"})  # fmt: skip


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


_SELECT: Final = (
    "SELECT runs.uid, folders.uid, folders.shown, task, question, answer, expected, profile, runs.kind, stop, outcome, "
    "score, reward, advantage, learnt, rl_step, grp, sample, steps, tool_calls, tool_errors, repairs, prompt_tokens, "
    "completion_tokens, tokens, seconds, cost, benchmark, family, agents "
    "FROM runs JOIN texts USING (id) JOIN folders ON folders.id = runs.folder"
)


class Queries:
    """Questions to one index, through one connection."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._db = database

    def runs(self, query: Mapping[str, str]) -> Page:
        """A page of the list. A query that cannot be understood raises `ConfigError`."""
        where, values = self._where(query)
        order, limit, offset = _order(query), _whole(query, "limit", 50), _whole(query, "offset", 0)
        total = self._count(where, values)
        ids = [number for (number,) in self._db.execute(
            f"SELECT id FROM runs {where} ORDER BY {order} LIMIT ? OFFSET ?",
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
        select = _SELECT.replace("SELECT ", "SELECT runs.id, ", 1)
        return [(number, _row(fields)) for number, *fields in self._db.execute(f"{select} {rest}", values)]

    def _count(self, where: str, values: tuple[object, ...]) -> int:
        (total,) = self._db.execute(f"SELECT count(*) FROM runs {where}", values).fetchone()
        return int(total)

    def _where(self, query: Mapping[str, str]) -> tuple[str, tuple[object, ...]]:
        unknown = sorted(set(query) - PARAMETERS)
        if unknown:
            raise ConfigError(f"the list has no filter {unknown[0]!r}", hint=f"filters are {', '.join(sorted(PARAMETERS))}")
        parts, values = list[str](), list[object]()
        for name, column in _EQUAL.items():
            if name in query:
                wanted = query[name].split(",") if name in _LISTS else [query[name]]
                parts.append(f"{column} IN ({','.join('?' * len(wanted))})")
                values += wanted
        for name, condition in _WHOLE.items():
            if name in query:
                parts.append(condition)
                values.append(_whole(query, name, 0))
        parts += [condition for name, condition in _FLAGS.items() if query.get(name) in ("1", "true")]
        if "folder" in query:
            parts.append("folder = (SELECT id FROM folders WHERE uid = ?)")
            values.append(query["folder"])
        if "agent" in query:
            parts.append("id IN (SELECT run FROM agents WHERE tag = (SELECT id FROM tags WHERE tag = ?))")
            values.append(query["agent"])
        if "finding" in query:
            parts.append("id IN (SELECT run FROM findings WHERE scanner = ?)")
            values.append(query["finding"])
        if words := match_expression(query.get("q", ""), query.get("in")):
            parts.append("id IN (SELECT rowid FROM words WHERE words MATCH ?)")
            values.append(words)
        return (f"WHERE {' AND '.join(parts)}" if parts else ""), tuple(values)

    # ---- one run

    def place(self, uid: str) -> Place | None:
        row = self._db.execute(
            "SELECT runs.id, runs.uid, files.path, files.kind, parts, folders.path, number, place, length, profile_hash "
            "FROM runs JOIN texts USING (id) JOIN files ON files.id = runs.file "
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
            "SELECT folder, count(*) AS runs, sum(outcome = 'right') AS hits, sum(score IS NOT NULL) AS scored, "
            "sum(tokens) AS tokens FROM runs GROUP BY folder"
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

    def folder_paths(self) -> dict[str, Path]:
        return {uid: _path(path) for uid, path in self._db.execute("SELECT uid, path FROM folders")}

    def compared(self, folders: Sequence[str], only: str, offset: int, limit: int) -> dict[str, Any]:
        """The tasks that all of these folders have, with the runs of each.

        A folder solves a task if at least half of its attempts are right. The pattern of a task has a digit for each
        folder: `10` if the first solves it and the second does not. `only` is a pattern, or `disagree`.
        """
        places = " UNION ALL ".join("SELECT (SELECT id FROM folders WHERE uid = ?) AS folder, ? AS bit" for _ in folders)
        bits = [value for at, uid in enumerate(folders) for value in (uid, 1 << (len(folders) - 1 - at))]
        tasks = (
            f"WITH places AS ({places}), solved AS (SELECT task, bit, avg(outcome = 'right') >= 0.5 AS ok FROM places "
            "JOIN runs USING (folder) GROUP BY task, folder), tasks AS (SELECT task, sum(ok * bit) AS pattern FROM "
            f"solved GROUP BY task HAVING count(*) = {len(folders)})"
        )
        full = (1 << len(folders)) - 1
        patterns = {
            format(pattern, f"0{len(folders)}b"): count
            for pattern, count in self._db.execute(f"{tasks} SELECT pattern, count(*) FROM tasks GROUP BY pattern", bits)
        }
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
            f"SELECT uid, step, scanner, severity, message, task FROM findings JOIN runs ON runs.id = findings.run {where} "
            "ORDER BY severity = 'info', severity = 'warning', findings.rowid LIMIT ? OFFSET ?",
            (*values, most, offset),
        )
        names = ("run", "step", "scanner", "severity", "message", "task")
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
        empty = {"busy": True, "files": 0, "files_total": 0, "bytes": 0, "bytes_total": 0, "runs": 0}
        found: dict[str, object] = {**empty, **(orjson.loads(row[0]) if row is not None else {})}
        return {**found, "runs": self._count("", ())}


def match_expression(text: str, scope: str | None) -> str:
    """What a person typed, for SQLite: every word must occur, words in quotes together, the last one may go on."""
    terms: list[str] = []
    found = list(_TERMS.finditer(text))
    for at, term in enumerate(found):
        phrase, word = term.groups()
        words = spaced(phrase if phrase is not None else word).replace('"', " ")
        if not any(character.isalnum() for character in words):
            continue
        open_end = word is not None and at == len(found) - 1 and not text.endswith((" ", '"'))
        terms.append(f'"{words}"' + ("*" if open_end else ""))
    if not terms:
        return ""
    if scope and scope not in _SCOPES:
        raise ConfigError(f"cannot search in {scope!r}", hint=f"use one of {', '.join(_SCOPES)}")
    return f"{{{scope}}} : ({' AND '.join(terms)})" if scope else " AND ".join(terms)


def words_of(text: str) -> list[str]:
    """The words and phrases of a search, to mark them in a text."""
    return [phrase or word for phrase, word in _TERMS.findall(text) if (phrase or word).strip('"')]


def _path(encoded: bytes) -> Path:
    return Path(os.fsdecode(encoded))


def _order(query: Mapping[str, str]) -> str:
    sort = query.get("sort") or "added"
    column = SORTS.get(sort.removeprefix("-"))
    if column is None:
        raise ConfigError(f"the list cannot be sorted by {sort!r}", hint=f"use one of {', '.join(SORTS)}")
    down = "DESC" if sort.startswith("-") else "ASC"
    return f"{column} {down}" if column == "id" else f"{column} {down} NULLS LAST, id"


def _whole(query: Mapping[str, str], name: str, default: int) -> int:
    value = query.get(name, "")
    if not value:
        return default
    if not value.isdecimal() or len(value) > 15:
        raise ConfigError(f"`{name}` must be a whole number, not {value[:40]!r}")
    return int(value)


def _row(fields: list[object]) -> Row:
    (uid, folder, path, task, question, answer, expected, profile, kind, stop, outcome, score, reward, advantage,
     learnt, step, group, sample, steps, tool_calls, tool_errors, repairs, prompt_tokens, completion_tokens, tokens,
     seconds, cost, benchmark, family, agents) = fields  # fmt: skip
    return Row(  # type: ignore[typeddict-item]
        id=uid, folder=folder, path=path, task=task, question=question, answer=answer, expected=expected,
        profile=profile, kind=kind, stop=stop, outcome=outcome, score=score, reward=reward, advantage=advantage,
        learnt=None if learnt is None else bool(learnt), step=step, group=group, sample=sample, steps=steps,
        tool_calls=tool_calls, tool_errors=tool_errors, repairs=repairs, prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens, tokens=tokens, seconds=seconds, cost=cost, benchmark=benchmark,
        family=family, agents=str(agents).split(),
    )  # fmt: skip
