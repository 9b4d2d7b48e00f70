"""What a scanner is, what it says about a run, and what becomes of that: a finding with the address of the run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, runtime_checkable

from coa.trajectory import Profile, Trajectory
from coa.trajectory.types import Frozen, Text


class Severity(StrEnum):
    INFO = "info"
    """Worth knowing; often harmless."""
    WARNING = "warning"
    """Something went wrong, or the run cannot be taken at face value."""
    ERROR = "error"
    """The run is of no use as it is, or somebody tampered with it."""

    @property
    def rank(self) -> int:
        return list(Severity).index(self)


class Note(NamedTuple):
    """What a scanner says about a run. A plain tuple (step, severity, message) will do as well."""

    step: int | None
    """Index into `trajectory.steps`; None if it is about the run as a whole."""
    severity: Severity
    message: str
    kind: str = ""
    """A few words by which the report counts the notes of one scanner, such as "time-out"."""


class Finding(Frozen):
    """Something that a scanner noticed in a run, with the file, task and step where it is."""

    run: str
    """Id of the run, which is its address in the viewer: `coa.trajectory.identity.run_id`."""
    step: int | None
    scanner: str
    severity: Severity
    message: Text
    kind: Text = ""
    task: Text
    file: Text

    @property
    def address(self) -> str:
        """Where the viewer shows it, behind the address of the viewer itself."""
        return f"#/run/{self.run}" + ("" if self.step is None else f"?step={self.step}")


class ScannerFailure(NamedTuple):
    """A scanner that raised an error or returned something that is not a note. It says nothing about the run."""

    scanner: str
    message: str


@runtime_checkable
class Scanner(Protocol):
    """Interface of a scanner: it looks at one run at a time and yields notes.

    A scanner keeps nothing between runs, because several threads may use it. [Scan](../guides/scan.md) shows how to
    add one.
    """

    @property
    def name(self) -> str: ...

    @property
    def about(self) -> str:
        """One line for `coa scan --list`."""

    def scan(self, trajectory: Trajectory, profile: Profile) -> Iterable[Note]: ...


@runtime_checkable
class GroupScanner(Scanner, Protocol):
    """A scanner that can say more when it sees the attempts at one task together.

    The stage keeps only what `brief` returns of each run, and calls `scan_group` once it has read the attempts at a
    task in one file. `scan` is for callers that have a single run.
    """

    def brief(self, trajectory: Trajectory, profile: Profile) -> Any:
        """What to remember of a run: a few bytes. None if the run does not matter to the group."""

    def scan_group(self, briefs: Sequence[Any]) -> Iterable[tuple[int, Note]]:
        """Notes, each with the index of the brief of its run."""
