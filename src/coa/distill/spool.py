"""Kept trajectories wait on disk until all are read, so memory use is the same for ten runs and for ten million.

Near-duplicate questions are found here too. Candidates are taken in the order of their content hashes, so that the same
trajectories are kept in whatever order they were read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

from coa.distill.config import Duplicates
from coa.distill.filters import questions
from coa.distill.filters.base import Dropped, digest
from coa.distill.filters.questions import bands, pieces, plain
from coa.report import plural
from coa.scoring import normalise
from coa.trajectory import Trajectory

_COMPARED: Final = 256
"""Number of earlier questions with which a question is compared. Only sets that repeat one template have more."""
_COMMIT_EVERY: Final = 500


class Spool:
    def __init__(self, path: Path) -> None:
        self._path = path
        path.unlink(missing_ok=True)
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.executescript(
            """
            PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;
            CREATE TABLE waiting
                (digest TEXT PRIMARY KEY, task TEXT, copies INTEGER, line TEXT, chosen INTEGER DEFAULT 0);
            CREATE TABLE questions (id INTEGER PRIMARY KEY, text TEXT, gold TEXT, taken INTEGER, UNIQUE (text, gold));
            CREATE TABLE bands (band INTEGER, question INTEGER);
            CREATE INDEX by_band ON bands (band);
            BEGIN;
            """
        )
        self._added = 0

    def add(self, trajectory: Trajectory, copies: int) -> Dropped | None:
        """Of equal trajectories one is kept, whichever came first."""
        name, line = digest(trajectory), trajectory.to_json()
        there = self._connection.execute("SELECT 1 FROM waiting WHERE digest = ?", (name,)).fetchone()
        if there:
            # They may differ in what their meta says of their origin; the choice must not depend on the order.
            self._connection.execute("UPDATE waiting SET line = min(line, ?) WHERE digest = ?", (line, name))
            return Dropped(questions.SAME_TRAJECTORY, "it was read before")
        self._connection.execute(
            "INSERT INTO waiting (digest, task, copies, line) VALUES (?, ?, ?, ?)",
            (name, trajectory.task.id, copies, line),
        )
        self._added += 1
        if self._added % _COMMIT_EVERY == 0:
            self._connection.execute("COMMIT")
            self._connection.execute("BEGIN")
        return None

    def choose(self, settings: Duplicates) -> Iterator[tuple[Trajectory, Dropped]]:
        """Decide which are kept, and yield those that are not. Runs that corrected themselves are preferred."""
        for (name,) in self._connection.execute("SELECT digest FROM waiting ORDER BY copies DESC, digest"):
            trajectory = self._get(name)
            dropped = self._seen(trajectory, settings)
            if dropped is not None:
                yield trajectory, dropped
            else:
                self._connection.execute("UPDATE waiting SET chosen = 1 WHERE digest = ?", (name,))

    def chosen(self) -> Iterator[tuple[Trajectory, int]]:
        """What is kept, with its number of copies; attempts at one task are numbered."""
        before, sample = None, 0
        rows = self._connection.execute("SELECT task, copies, digest FROM waiting WHERE chosen ORDER BY task, digest")
        for task, copies, name in rows:
            sample = sample + 1 if task == before else 0
            before = task
            yield self._get(name).model_copy(update={"sample": sample}), copies

    def _get(self, name: str) -> Trajectory:
        # Sorting names and fetching records one by one keeps the records out of the sorter's memory.
        (line,) = self._connection.execute("SELECT line FROM waiting WHERE digest = ?", (name,)).fetchone()
        return Trajectory.from_json(line)

    def _seen(self, trajectory: Trajectory, settings: Duplicates) -> Dropped | None:
        text = plain(trajectory.task.question_in_context)
        # Only questions with the same answer can be duplicates: "river of town 3" and "river of town 4" look alike.
        gold = "|".join(sorted({normalise(answer) for answer in trajectory.task.answer}))
        row = self._connection.execute(
            "SELECT id, taken FROM questions WHERE text = ? AND gold = ?", (text, gold)
        ).fetchone()
        if row is not None:
            if row[1] >= settings.per_question:
                taken = plural(row[1], "trajectory", "trajectories")
                return Dropped(questions.SAME_QUESTION, f"the question has {taken} already")
            self._connection.execute("UPDATE questions SET taken = taken + 1 WHERE id = ?", (row[0],))
            return None
        marks = list(bands(text, beside=gold))
        own = pieces(text)
        for other in self._similar(marks):
            found = questions.similarity(own, pieces(other))
            if found >= settings.similarity:
                return Dropped(questions.NEAR_DUPLICATE, f"{found:.2f} like: {other[:150]}")
        inserted = self._connection.execute(
            "INSERT INTO questions (text, gold, taken) VALUES (?, ?, 1)", (text, gold)
        ).lastrowid
        self._connection.executemany("INSERT INTO bands VALUES (?, ?)", [(mark, inserted) for mark in marks])
        return None

    def _similar(self, marks: list[int]) -> list[str]:
        places = ", ".join("?" * len(marks))
        rows = self._connection.execute(
            f"SELECT text FROM questions WHERE id IN (SELECT question FROM bands WHERE band IN ({places})) "
            f"ORDER BY id LIMIT {_COMPARED}",
            marks,
        )
        return [text for (text,) in rows]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._path.unlink(missing_ok=True)
