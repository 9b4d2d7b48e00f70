"""The folder of an evaluation: what is in it, whose it is, and scores that no kill can lose.

config.json          what was asked; a folder is one evaluation's and refuses another
trajectories.jsonl   each run as it ended, appended at once
scores.jsonl         verdicts and choices as they come; at the end they move into the trajectories, and it is gone
report.json, .html   made anew from the trajectories whenever an evaluation ends
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from coa.errors import StoreError
from coa.evaluate.attempts import SELECTED_AMONG
from coa.folder import CONFIG, claim, lock, read_config
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
        """Runs that were set aside, to be tried again on request."""
        aside = self.trajectories.with_name(self.name + ".aside")
        return sum(1 for _ in read_lines(aside)) if aside.is_file() else 0

    @property
    def is_evaluation(self) -> bool:
        return self.name == NAMES[0] and self.read_config().get("stage") == "eval"

    def read_config(self) -> dict[str, Any]:
        return read_config(self.path) or {}

    def held(self) -> AbstractContextManager[None]:
        """For this process alone: two would make, and pay for, every run twice."""
        # Else it is a file among others, in a folder that is nobody's.
        return lock(self.path) if self.name == NAMES[0] else nullcontext()

    def claim(self, asked: Mapping[str, Any]) -> None:
        """Make it this evaluation's, or refuse if it is another's."""
        again = (
            f"give another --out, or score what is there again: coa score {self.path} --scorer {asked.get('scorer')}"
        )
        claim(
            self.path,
            "eval",
            asked,
            free=_FREE,
            compared=lambda side: {name: _identity(value) for name, value in side.items()},
            foreign=self.name,
            hints={"scorer": again},
            renew=True,
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


def _identity(value: Any) -> Any:
    """Of a benchmark its name and content; its size follows from the limit."""
    if isinstance(value, dict) and "sha256" in value and "name" in value:
        return {"name": value["name"], "sha256": value["sha256"]}
    return value
