"""What a scan found, counted by scanner. The counts are complete; of the findings only the first are kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from coa.scan.finding import Finding, Severity
from coa.scan.reading import Problem

_MOST_KINDS: Final = 50
_OTHER_KINDS: Final = "other"
MOST_PROBLEMS: Final = 100
"""Number of problems that are named; all of them are counted."""


@dataclass
class ScannerSummary:
    """What one scanner found."""

    name: str
    about: str
    runs: int = 0
    """Number of runs with at least one finding."""
    findings: int = 0
    severities: Counter[Severity] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    """Number of findings by kind; from the 51st kind on they are counted together."""
    kept: dict[Severity, list[Finding]] = field(default_factory=dict)
    """The first findings of each severity."""
    failed: int = 0
    """Number of runs at which the scanner itself failed."""
    failure: str = ""
    """Why it failed the first time."""

    def add(self, found: Finding, examples: int) -> None:
        self.findings += 1
        self.severities[found.severity] += 1
        if found.kind:
            known = found.kind in self.kinds or len(self.kinds) < _MOST_KINDS
            self.kinds[found.kind if known else _OTHER_KINDS] += 1
        kept = self.kept.setdefault(found.severity, [])
        if len(kept) < examples:
            kept.append(found)

    @property
    def first(self) -> list[Finding]:
        """The findings that are kept, the most severe first."""
        return [found for severity in reversed(Severity) for found in self.kept.get(severity, ())]

    def fail(self, message: str) -> None:
        self.failed += 1
        self.failure = self.failure or message

    def to_json(self) -> dict[str, Any]:
        return {
            "about": self.about,
            "runs": self.runs,
            "findings": self.findings,
            "severities": {severity.value: self.severities[severity] for severity in Severity},
            "kinds": dict(self.kinds.most_common()),
            "failed": self.failed,
            "failure": self.failure,
            "first": [one.model_dump(mode="json") for one in self.first],
        }


@dataclass(frozen=True)
class JudgeFigures:
    """What asking the judge took."""

    model: str
    question: str
    asked: int = 0
    """Number of calls of the model."""
    cached: int = 0
    """Number of runs whose verdict was known from an equal run."""
    failed: int = 0
    """Number of runs on which the judge gave no verdict that can be used. They have no finding of the judge."""
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True)
class ScanReport:
    """Result of `scan`. The counts are complete; of the findings only the first of each scanner are kept here."""

    runs: int
    """Number of runs that were scanned."""
    scanners: Mapping[str, ScannerSummary]
    """By name, in the order in which they ran."""
    problems: tuple[Problem, ...] = ()
    """The first files and records that could not be read."""
    problem_count: int = 0
    judge: JudgeFigures | None = None
    out: Path | None = None

    @property
    def findings(self) -> int:
        return sum(one.findings for one in self.scanners.values())

    def at_least(self, severity: Severity | str) -> int:
        """Number of findings of this severity or a higher one."""
        rank = Severity(severity).rank
        return sum(one.severities[level] for one in self.scanners.values() for level in Severity if level.rank >= rank)

    @property
    def data(self) -> dict[str, Any]:
        """All of report.json."""
        judge = None if self.judge is None else vars(self.judge)
        return {
            "runs": self.runs,
            "findings": self.findings,
            "scanners": {name: one.to_json() for name, one in self.scanners.items()},
            "problems": [problem._asdict() for problem in self.problems],
            "problem_count": self.problem_count,
            "judge": judge,
        }
