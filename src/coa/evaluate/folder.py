"""The folder of an evaluation: what is in it, which evaluation it belongs to, and scores that no kill can lose.

config.json          the settings; a folder belongs to one evaluation and refuses another
trajectories.jsonl   each run, appended as soon as it ends
scores.jsonl         verdicts and choices as they come; at the end they move into the trajectories, and it is removed
report.json, .html   made anew from the trajectories whenever an evaluation ends
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from coa.errors import StoreError
from coa.evaluate.attempt_store import on_disk, task_key, temporary_database
from coa.evaluate.attempts import SELECTED_AMONG
from coa.folder import CONFIG, claim, lock, read_config
from coa.runtime.best_of import SELECTED
from coa.trajectory import JsonlWriter, Score, Trajectory
from coa.trajectory.store import NAMES, rewrite
from coa.trajectory.store.jsonl import read_lines
from coa.trajectory.types import FrozenDict

Key = tuple[str, int]
_FREE: Final = ("limit", "samples", "ks", "versions")
"""Settings that may change when an evaluation goes on: they only decide how much of the benchmark it covers."""
_SHARD: Final = "give each shard a separate --out; coa eval merge adds them up"


@dataclass(frozen=True, slots=True)
class Folder:
    path: Path
    name: str = NAMES[0]
    """Name of the file with the trajectories; another one for a file that is not in a run folder."""

    @classmethod
    def of(cls, path: Path) -> Folder:
        """A run folder, or a file of trajectories anywhere."""
        return cls(path) if path.is_dir() else cls(path.parent, path.name)

    @property
    def config(self) -> Path:
        return self.path / CONFIG

    @property
    def trajectories(self) -> Path:
        return self.path / self.name

    @property
    def scores(self) -> Path:
        return self.path / ("scores.jsonl" if self.name == NAMES[0] else f"{self.name}.scores")

    @property
    def report(self) -> Path:
        return self.path / "report.json"

    @property
    def page(self) -> Path:
        return self.path / "report.html"

    def retried(self) -> int:
        """Number of failed runs that were set aside to be repeated."""
        return sum(1 for _ in read_lines(self.aside)) if self.aside.is_file() else 0

    @property
    def aside(self) -> Path:
        return self.trajectories.with_name(self.name + ".aside")

    @property
    def is_evaluation(self) -> bool:
        return self.name == NAMES[0] and self.read_config().get("stage") == "eval"

    def read_config(self) -> dict[str, Any]:
        return read_config(self.path) or {}

    def held(self) -> AbstractContextManager[None]:
        """Hold the folder for this process alone: two would make, and pay for, every run twice.

        A single file in a folder with other things does not lock the folder.
        """
        return lock(self.path) if self.name == NAMES[0] else nullcontext()

    def claim(self, record: Mapping[str, Any]) -> None:
        """Claim the folder for this evaluation, or refuse if it belongs to another one."""
        again = f"give another --out, or score the finished runs: coa score {self.path} --scorer {record.get('scorer')}"
        claim(
            self.path, "eval", record, free=_FREE, foreign=self.name, renew=True,
            hints={"scorer": again, "shard": _SHARD},
            compared=lambda side: {name: _identity(value) for name, value in side.items()},
        )  # fmt: skip


class Notes:
    """What the journal says about runs: scores by name, and which attempt at a task was chosen.

    They wait in a temporary database: a journal may hold a verdict on each of a million runs.
    """

    def __init__(self) -> None:
        self._noted = False
        self._connection = temporary_database(
            "CREATE TABLE scores (task BLOB, sample INTEGER, name TEXT, score BLOB, PRIMARY KEY (task, sample, name));"
            "CREATE TABLE choices (task BLOB PRIMARY KEY, sample INTEGER, how TEXT, among INTEGER);"
            "BEGIN"
        )

    def score(self, key: Key, name: str, score: Score) -> None:
        row = (task_key(key[0]), key[1], name, score.model_dump_json().encode())
        self._put("INSERT OR REPLACE INTO scores VALUES (?, ?, ?, ?)", row)

    def choose(self, key: Key, how: str, among: int) -> None:
        """A later choice, among more attempts, takes the place of an earlier one."""
        self._put("INSERT OR REPLACE INTO choices VALUES (?, ?, ?, ?)", (task_key(key[0]), key[1], how, among))

    def _put(self, statement: str, row: tuple[object, ...]) -> None:
        self._noted = True
        with on_disk():
            self._connection.execute(statement, row)

    def __bool__(self) -> bool:
        return self._noted

    def applied(self, trajectory: Trajectory) -> Trajectory:
        task, update = task_key(trajectory.task.id), dict[str, Any]()
        with on_disk():
            query = "SELECT name, score FROM scores WHERE task = ? AND sample = ? ORDER BY rowid"
            scores = self._connection.execute(query, (task, trajectory.sample)).fetchall()
            query = "SELECT sample, how, among FROM choices WHERE task = ?"
            choice = self._connection.execute(query, (task,)).fetchone()
        if scores:
            noted = {name: Score.model_validate_json(score) for name, score in scores}
            update["scores"] = FrozenDict({**trajectory.scores, **noted})
        if choice:
            others = {name: value for name, value in trajectory.meta.items() if name not in (SELECTED, SELECTED_AMONG)}
            mine = {SELECTED: choice[1], SELECTED_AMONG: choice[2]} if choice[0] == trajectory.sample else {}
            update["meta"] = FrozenDict({**others, **mine})
        return trajectory.model_copy(update=update) if update else trajectory

    def close(self) -> None:
        self._connection.close()

    def __del__(self) -> None:
        if hasattr(self, "_connection"):
            self.close()


class Journal:
    """Appends scores and choices to scores.jsonl, one line for each."""

    def __init__(self, folder: Folder) -> None:
        self._writer = JsonlWriter(folder.scores)

    def score(self, key: Key, scores: Mapping[str, Score]) -> None:
        dumped = {name: score.model_dump(mode="json") for name, score in scores.items()}
        self._writer.write_line(orjson.dumps({"task": key[0], "sample": key[1], "scores": dumped}))

    def choose(self, key: Key, how: str, among: int) -> None:
        self._writer.write_line(orjson.dumps({"task": key[0], "sample": key[1], "chosen": how, "among": among}))

    def close(self) -> None:
        self._writer.close()


def read_notes(folder: Folder) -> Notes:
    notes = Notes()
    if not folder.scores.is_file():
        return notes
    for number, line in read_lines(folder.scores):
        try:
            row = orjson.loads(line)
            key = (str(row["task"]), int(row["sample"]))
            if "chosen" in row:
                notes.choose(key, str(row["chosen"]), int(row["among"]))
            else:
                for name, score in row["scores"].items():
                    notes.score(key, name, Score.model_validate(score))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreError(f"{folder.scores}, line {number} is not a verdict: {error}") from error
    return notes


def settle(folder: Folder) -> None:
    """Move what the journal says into the trajectories. To repeat it changes nothing."""
    if (notes := read_notes(folder)) and folder.trajectories.is_file():
        rewrite(folder.trajectories, notes.applied)
    folder.scores.unlink(missing_ok=True)


def folders_in(path: Path) -> Iterable[Path]:
    """The run folders that a path means: itself, or those inside it, where several benchmarks were evaluated."""
    if any((path / name).is_file() for name in NAMES) or not path.is_dir():
        return [path]
    inside = sorted(child for child in path.iterdir() if any((child / name).is_file() for name in NAMES))
    return inside or [path]


def _identity(value: Any) -> Any:
    """What identifies a benchmark is its name and content; its size follows from the limit, and so does a shard's."""
    if isinstance(value, dict) and "sha256" in value and "name" in value:
        return {"name": value["name"], "sha256": value["sha256"]}
    if isinstance(value, dict) and "tasks_of_all" in value:
        return value["part"]
    return value
