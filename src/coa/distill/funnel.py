"""The count of what each stage kept and dropped, why, with three examples for each reason.

Independent of the order of input: examples are those whose content hashes smallest.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from coa.distill.filters import STAGES, Dropped, FilterStage, Reason
from coa.distill.filters.base import digest
from coa.distill.team_run import Skipped
from coa.trajectory import Trajectory

EXAMPLES: Final = 3
_NAMED: Final = 1_000
"""Unreadable places, and roles, that are kept by name; more are only counted."""


@dataclass(frozen=True, slots=True, order=True)
class DroppedExample:
    order: str
    task: str
    question: str
    detail: str
    source: str

    def to_json(self) -> dict[str, str]:
        return {"task": self.task, "question": self.question, "detail": self.detail, "source": self.source}


@dataclass
class Funnel:
    dropped: dict[FilterStage, Counter[Reason]] = field(default_factory=lambda: {stage: Counter() for stage in STAGES})
    examples: dict[tuple[FilterStage, Reason], list[DroppedExample]] = field(default_factory=dict)
    skipped: set[tuple[str, str, str]] = field(default_factory=set)
    roles: dict[str, Counter[str]] = field(default_factory=dict)
    formats: Counter[str] = field(default_factory=Counter)
    unreadable: int = 0
    runs: int = 0
    """Team runs that were read."""
    ready: int = 0
    """Trajectories that came as such and needed no conversion."""
    filled: int = 0
    """Steps that a model wrote."""
    corrected: int = 0
    shortened: int = 0
    kept: int = 0
    rows: int = 0
    """Written, copies included."""

    def skip(self, item: Skipped) -> None:
        self.unreadable += 1
        self.skipped.add((item.file, item.place, item.reason))
        if len(self.skipped) >= 2 * _NAMED:
            self.skipped = set(self.named())

    def named(self) -> list[tuple[str, str, str]]:
        """Unreadable places, the first in the alphabet where there are too many to keep."""
        return sorted(self.skipped)[:_NAMED]

    def read(self, trajectory: Trajectory, *, converted: bool) -> None:
        self.runs += converted
        self.ready += not converted
        source, roles = trajectory.meta.get("source"), trajectory.meta.get("roles")
        self.formats[str(source.get("format")) if isinstance(source, dict) else "trajectory"] += 1
        for name, decision in roles.items() if isinstance(roles, dict) else ():
            self.roles.setdefault(name, Counter())[str(decision)] += 1
        if len(self.roles) >= 2 * _NAMED:
            self.roles = {name: self.roles[name] for name in sorted(self.roles)[:_NAMED]}

    def drop(self, stage: FilterStage, dropped: Dropped, trajectory: Trajectory) -> None:
        self.dropped[stage][dropped.reason] += 1
        best = self.examples.setdefault((stage, dropped.reason), [])
        best.append(_example(trajectory, dropped))
        best.sort()
        del best[EXAMPLES:]

    @property
    def entered(self) -> int:
        return self.runs + self.ready

    def standing(self) -> str:
        """For a progress line."""
        dropped = sum(counter.total() for counter in self.dropped.values())
        return f"{dropped:,} dropped, {self.unreadable:,} places unreadable"

    def stages(self) -> list[tuple[FilterStage, int, int]]:
        """Each stage with how many came in and how many it kept."""
        rows, there = [], self.entered
        for stage in STAGES:
            kept = there - self.dropped[stage].total()
            rows.append((stage, there, kept))
            there = kept
        return rows

    def to_json(self) -> dict[str, Any]:
        return {
            "read": {
                "team_runs": self.runs,
                "trajectories": self.ready,
                "formats": dict(sorted(self.formats.items())),
                "unreadable": self.unreadable,
                "unreadable_places": [
                    {"file": file, "place": place, "reason": reason} for file, place, reason in self.named()
                ],
            },
            "stages": [
                {
                    "stage": stage.name,
                    "in": there,
                    "kept": kept,
                    "dropped": there - kept,
                    "reasons": {
                        reason.name: {
                            "count": count,
                            "examples": [example.to_json() for example in self.examples[(stage, reason)]],
                        }
                        for reason, count in sorted(self.dropped[stage].items())
                    },
                }
                for stage, there, kept in self.stages()
            ],
            "corrected_themselves": self.corrected,
            "shortened": self.shortened,
            "filled_steps": self.filled,
            "written": {"trajectories": self.kept, "rows": self.rows},
            "roles": {name: dict(sorted(found.items())) for name, found in sorted(self.roles.items())[:_NAMED]},
        }


def _example(trajectory: Trajectory, dropped: Dropped) -> DroppedExample:
    source = trajectory.meta.get("source")
    place = " ".join(str(source.get(key) or "") for key in ("file", "place")) if isinstance(source, dict) else ""
    question = trajectory.task.question
    short = question if len(question) <= 200 else f"{question[:200]}..."
    return DroppedExample(digest(trajectory), trajectory.task.id, short, dropped.detail[:300], place.strip())
