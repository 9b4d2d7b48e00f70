"""Counts what each stage kept and dropped, and why, with three examples for each reason.

The result does not depend on the order of the input: the examples are those whose content hashes are smallest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from coa.distill.filters import STAGES
from coa.distill.filters.base import Dropped, FilterStage, Reason, digest
from coa.distill.team_run import Skipped
from coa.report import plural
from coa.trajectory import Trajectory

EXAMPLES: Final = 3
_NAMED: Final = 1_000
"""Number of unreadable places, and of roles, that are kept by name; any others are only counted."""


class DroppedExample(NamedTuple):
    order: str
    task: str
    question: str
    detail: str
    source: str


@dataclass(frozen=True, slots=True)
class StageCount:
    """One stage of the funnel."""

    name: str
    meaning: str
    """What it asks for."""
    entered: int
    kept: int
    reasons: Mapping[str, int]
    """Dropped trajectories by reason, the most frequent first."""

    @property
    def dropped(self) -> int:
        return self.entered - self.kept


@dataclass
class Funnel:
    dropped: dict[FilterStage, Counter[Reason]] = field(default_factory=lambda: {stage: Counter() for stage in STAGES})
    examples: dict[tuple[str, str], list[DroppedExample]] = field(default_factory=dict)
    """By the names of stage and reason."""
    skipped: set[tuple[str, str, str]] = field(default_factory=set)
    roles: dict[str, Counter[str]] = field(default_factory=dict)
    formats: Counter[str] = field(default_factory=Counter)
    unreadable: int = 0
    runs: int = 0
    """Team runs that were read."""
    ready: int = 0
    """Rows that were trajectories already and needed no conversion."""
    filled: int = 0
    """Steps that a model wrote."""
    failed_handovers: int = 0
    """Hand-overs from agent to agent that failed and are left out."""
    inferred: Counter[str] = field(default_factory=Counter)
    """Agents and links between them that importers inferred, beside the numbers of all in those runs."""
    decisions: set[tuple[str, str]] = field(default_factory=set)
    """What importers decided that could have been otherwise, with the place it was read from."""
    misfits: int = 0
    """Dropped runs of which the profile does not know a tool, or whose order it does not allow."""
    corrected: int = 0
    shortened: int = 0
    kept: int = 0
    rows: int = 0
    """Rows that were written, copies included."""

    def skip(self, item: Skipped) -> None:
        self.unreadable += 1
        self.skipped.add((item.file, item.place, item.reason))
        if len(self.skipped) >= 2 * _NAMED:
            self.skipped = set(self.named())

    def named(self) -> list[tuple[str, str, str]]:
        """Unreadable places, the first in the alphabet where there are too many to keep."""
        return sorted(self.skipped)[:_NAMED]

    def read(self, trajectory: Trajectory, *, converted: bool, decisions: Iterable[str] = ()) -> None:
        self.runs += converted
        self.ready += not converted
        source, roles = trajectory.meta.get("source"), trajectory.meta.get("roles")
        self.formats[str(source.get("format")) if isinstance(source, dict) else "trajectory"] += 1
        failed, inferred = trajectory.meta.get("failed_handovers"), trajectory.meta.get("inferred")
        self.failed_handovers += len(failed) if isinstance(failed, list | tuple) else 0
        for name, number in inferred.items() if isinstance(inferred, dict) else ():
            self.inferred[name] += number if isinstance(number, int) else 0
        place = _place(source)
        self.decisions |= {(place, decision) for decision in decisions}
        if len(self.decisions) >= 2 * _NAMED:
            self.decisions = set(sorted(self.decisions)[:_NAMED])
        for name, decision in roles.items() if isinstance(roles, dict) else ():
            self.roles.setdefault(name, Counter())[str(decision)] += 1
        if len(self.roles) >= 2 * _NAMED:
            self.roles = {name: self.roles[name] for name in sorted(self.roles)[:_NAMED]}

    def drop(self, stage: FilterStage, dropped: Dropped, trajectory: Trajectory, *, misfit: bool = False) -> None:
        self.dropped[stage][dropped.reason] += 1
        self.misfits += misfit
        source, question = trajectory.meta.get("source"), trajectory.task.question
        short = question if len(question) <= 200 else f"{question[:200]}..."
        best = self.examples.setdefault((stage.name, dropped.reason.name), [])
        best.append(DroppedExample(digest(trajectory), trajectory.task.id, short, dropped.detail[:300], _place(source)))
        best.sort()
        del best[EXAMPLES:]

    @property
    def entered(self) -> int:
        return self.runs + self.ready

    def note(self) -> str:
        """For a progress line."""
        dropped = sum(counter.total() for counter in self.dropped.values())
        return f"{dropped:,} dropped, {self.unreadable:,} places unreadable"

    def stages(self) -> list[StageCount]:
        rows, entered = list[StageCount](), self.entered
        for stage in STAGES:
            ordered = sorted(self.dropped[stage].items(), key=lambda item: (-item[1], item[0]))
            kept = entered - self.dropped[stage].total()
            reasons = {reason.name: count for reason, count in ordered}
            rows.append(StageCount(stage.name, stage.meaning, entered, kept, reasons))
            entered = kept
        return rows

    def sureness(self) -> str:
        """How much of who is who, and who asked whom, is inferred; empty where the traces state it all."""
        found = [
            f"{self.inferred[name]:,} of {self.inferred[f'of_{name}']:,} {what}"
            for name, what in (("agents", "agents"), ("links", "hand-overs"))
            if self.inferred[name]
        ]
        if not found:
            return ""
        said = f"Inferred, because the traces do not state it: {' and '.join(found)}."
        weak, doubtful = self.inferred["weak"], self.inferred["ambiguous"]
        doubts = [f"{plural(weak, 'hand-over rests', 'hand-overs rest')} on a single sign"] if weak else []
        doubts += [f"{plural(doubtful, 'decision')} had more than one candidate"] if doubtful else []
        return f"{said} Of these, {' and '.join(doubts)}; the report names them." if doubts else said

    def decided(self) -> list[tuple[str, str]]:
        return sorted(self.decisions)[:_NAMED]

    def hints(self, traces: str = "traces/") -> list[str]:
        """What to do about the reasons that dropped most: those with at least a tenth of all that was read."""
        counts = {reason: count for counter in self.dropped.values() for reason, count in counter.items()}
        worst = sorted(counts, key=lambda reason: (-counts[reason], reason))
        return [reason.advice(traces) for reason in worst if counts[reason] >= 0.1 * self.entered]

    def to_json(self) -> dict[str, Any]:
        places = [dict(zip(("file", "place", "reason"), place, strict=True)) for place in self.named()]
        stages = []
        for stage in self.stages():
            reasons = {}
            for name, count in sorted(stage.reasons.items()):
                examples = [example._asdict() for example in self.examples[stage.name, name]]
                for example in examples:
                    del example["order"]
                reasons[name] = {"count": count, "examples": examples}
            counts = {"stage": stage.name, "in": stage.entered, "kept": stage.kept, "dropped": stage.dropped}
            stages.append({**counts, "reasons": reasons})
        formats = dict(sorted(self.formats.items()))
        return {
            "read": {
                "team_runs": self.runs, "trajectories": self.ready, "formats": formats, "unreadable": self.unreadable,
                "unreadable_places": places,
            },
            "stages": stages,
            "failed_handovers": self.failed_handovers,
            "inferred": {
                **dict(sorted(self.inferred.items())),
                "decisions": [{"run": place, "decision": decision} for place, decision in self.decided()],
            },
            "corrected_themselves": self.corrected,
            "shortened": self.shortened,
            "filled_steps": self.filled,
            "written": {"trajectories": self.kept, "rows": self.rows},
            "roles": {name: dict(sorted(found.items())) for name, found in sorted(self.roles.items())[:_NAMED]},
        }  # fmt: skip


def _place(source: object) -> str:
    """The file and the place in it."""
    found = (str(source.get(key) or "") for key in ("file", "place")) if isinstance(source, dict) else ()
    return " ".join(found).strip()
