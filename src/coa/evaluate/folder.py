"""The folder of an evaluation: what is in it, whose it is, and scores that no kill can lose.

config.json          what was asked; a folder is one evaluation's and refuses another
trajectories.jsonl   each run as it ended, appended at once
scores.jsonl         verdicts and choices as they come; at the end they move into the trajectories, and it is gone
report.json, .html   made anew from the trajectories whenever an evaluation ends
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from coa.errors import EvaluationError, StoreError
from coa.evaluate.attempts import SELECTED_AMONG
from coa.runtime.best_of import SELECTED
from coa.trajectory import JsonlWriter, Score, Trajectory
from coa.trajectory.store import NAMES, rewrite
from coa.trajectory.store.jsonl import read_lines
from coa.trajectory.types import FrozenDict

Key = tuple[str, int]
_FREE: Final = ("limit", "samples", "ks", "versions")
"""What may differ when an evaluation goes on: it then covers more, or less, of the same."""


@dataclass(frozen=True, slots=True)
class Folder:
    path: Path
    name: str = NAMES[0]
    """Of the file with the trajectories, where it is not in a run folder."""

    @classmethod
    def of(cls, path: Path) -> Folder:
        """A run folder, or a file of trajectories anywhere."""
        return cls(path) if path.is_dir() else cls(path.parent, path.name)

    @property
    def config(self) -> Path:
        return self.path / "config.json"

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
        """Runs that were set aside, to be tried again on request."""
        aside = self.trajectories.with_name(self.name + ".aside")
        return sum(1 for _ in read_lines(aside)) if aside.is_file() else 0

    @property
    def is_evaluation(self) -> bool:
        return self.name == NAMES[0] and self.read_config().get("stage") == "eval"

    def read_config(self) -> dict[str, Any]:
        try:
            found = orjson.loads(self.config.read_bytes())
        except (OSError, orjson.JSONDecodeError):
            return {}
        return found if isinstance(found, dict) else {}

    @contextmanager
    def held(self) -> Iterator[None]:
        """For this process alone, until it ends however it ends: two would make, and pay for, every run twice."""
        if self.name != NAMES[0]:  # a file among others, in a folder that is nobody's
            yield
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise StoreError(f"cannot open the folder {self.path}: {error.strerror}") from error
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise EvaluationError(
                    f"another process evaluates or scores in {self.path}", hint="wait for it, or give another --out"
                ) from error
            yield
        finally:
            os.close(lock)

    def claim(self, asked: Mapping[str, Any]) -> None:
        """Make it this evaluation's, or refuse if it is another's."""
        before = self.read_config()
        if before:
            self._refuse_another(before, asked)
        elif self.trajectories.is_file() or self.config.is_file():
            raise EvaluationError(f"{self.path} holds runs of something else", hint="give another --out")
        write_whole(self.config, _json(dict(asked)))

    def _refuse_another(self, before: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
        if before.get("stage") != "eval":
            raise EvaluationError(f"{self.path} holds no evaluation", hint="give another --out")
        told = orjson.loads(_json(dict(asked)))
        for name in [key for key in told if key not in _FREE]:
            there, here = _identity(before.get(name)), _identity(told[name])
            if there != here:
                hint = "give another --out"
                if name == "scorer":
                    hint += f", or score what is there again: coa score {self.path} --scorer {told[name]}"
                raise EvaluationError(
                    f"{self.path} was evaluated with {name} {_short(there)}, not {_short(here)}", hint=hint
                )


@dataclass
class Notes:
    """What the journal says of runs: scores by name, and which attempt at a task was chosen."""

    scores: dict[Key, dict[str, Score]] = field(default_factory=dict)
    choices: dict[str, tuple[int, str, int]] = field(default_factory=dict)
    """Of a task: which attempt, how, and among how many."""

    def __bool__(self) -> bool:
        return bool(self.scores or self.choices)

    def applied(self, trajectory: Trajectory) -> Trajectory:
        update: dict[str, Any] = {}
        if told := self.scores.get(trajectory.key):
            update["scores"] = FrozenDict({**trajectory.scores, **told})
        if choice := self.choices.get(trajectory.task.id):
            # A later choice, among more attempts, takes the place of an earlier one.
            others = {name: value for name, value in trajectory.meta.items() if name not in (SELECTED, SELECTED_AMONG)}
            mine = {SELECTED: choice[1], SELECTED_AMONG: choice[2]} if choice[0] == trajectory.sample else {}
            update["meta"] = FrozenDict({**others, **mine})
        return trajectory.model_copy(update=update) if update else trajectory


class Journal:
    """Appends what was found out about a run, one line for each."""

    def __init__(self, folder: Folder) -> None:
        self._writer = JsonlWriter(folder.scores)

    def score(self, key: Key, scores: Mapping[str, Score]) -> None:
        told = {name: score.model_dump(mode="json") for name, score in scores.items()}
        self._writer.write_line(orjson.dumps({"task": key[0], "sample": key[1], "scores": told}))

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
                notes.choices[key[0]] = (key[1], str(row["chosen"]), int(row["among"]))
            else:
                found = {name: Score.model_validate(score) for name, score in row["scores"].items()}
                notes.scores.setdefault(key, {}).update(found)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreError(f"{folder.scores}, line {number} is no verdict: {error}") from error
    return notes


def settle(folder: Folder) -> None:
    """Move what the journal says into the trajectories. Done twice, it comes to the same."""
    if (notes := read_notes(folder)) and folder.trajectories.is_file():
        rewrite(folder.trajectories, notes.applied)
    folder.scores.unlink(missing_ok=True)


def folders_in(path: Path) -> Iterable[Path]:
    """The run folders that a path means: itself, or those inside it, where several benchmarks were evaluated."""
    if any((path / name).is_file() for name in NAMES) or not path.is_dir():
        return [path]
    inside = sorted(child for child in path.iterdir() if any((child / name).is_file() for name in NAMES))
    return inside or [path]


def write_whole(path: Path, data: bytes) -> None:
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(data)
        part.replace(path)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}") from error


def _json(value: object) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _identity(value: Any) -> Any:
    """Of a benchmark its name and content; its size follows from the limit."""
    if isinstance(value, dict) and "sha256" in value and "name" in value:
        return {"name": value["name"], "sha256": value["sha256"]}
    return value


def _short(value: object) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= 160 else f"{text[:160]}…"
