"""Scanners over one run. Code of any origin runs here, so a scanner that fails is reported and the others go on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Final, TypeVar

from coa.errors import ProfileError
from coa.scan.finding import Finding, Note, Scanner, ScannerFailure, Severity
from coa.trajectory import Profile, Trajectory, profile_of

log = logging.getLogger(__name__)
_LONGEST: Final = 500
_MOST_NOTES: Final = 1_000
"""Number of notes that one scanner may have on one run."""
_T = TypeVar("_T")


def scan_run(
    trajectory: Trajectory,
    scanners: Sequence[Scanner],
    *,
    run: str = "",
    file: str = "",
    profile: Profile | None = None,
    failures: list[ScannerFailure] | None = None,
) -> list[Finding]:
    """What the scanners find in one run, in the order of its steps for each scanner.

    `run` is the id of the run and `file` where it was read. A scanner that fails is added to `failures`, or else named
    in a warning. Without `profile` the trajectory's own is used; a run whose profile is unknown is such a failure too.
    """
    failed = failures if failures is not None else list[ScannerFailure]()
    found: list[Finding] = []
    try:
        known = profile or profile_of(trajectory)
    except ProfileError as error:
        failed.append(ScannerFailure("profile", error.message))
        scanners = ()
    for scanner in scanners:
        notes = guarded(scanner.name, partial(_notes, scanner, trajectory, known), failed)
        found += [finding(note, scanner.name, trajectory, run, file) for note in notes or ()]
    if failures is None:
        for failure in failed:
            log.warning("task %s: %s: %s", trajectory.task.id, failure.scanner, failure.message)
    return found


def guarded(name: str, work: Callable[[], _T], failures: list[ScannerFailure]) -> _T | None:
    """What a scanner returns; None if it failed, and then `failures` says why."""
    try:
        return work()
    except Exception as error:  # the border to code of any origin
        failures.append(ScannerFailure(name, f"{type(error).__name__}: {error}"[:_LONGEST]))
        return None


def finding(note: Note, scanner: str, trajectory: Trajectory, run: str, file: str) -> Finding:
    step = note.step
    if step is not None and not 0 <= step < len(trajectory.steps):
        step = None
    return placed(note._replace(step=step), scanner, trajectory.task.id, run, file)


def placed(note: Note, scanner: str, task: str, run: str, file: str) -> Finding:
    return Finding(
        run=run, step=note.step, scanner=scanner, severity=note.severity, message=note.message[:_LONGEST],
        kind=note.kind[:_LONGEST], task=task, file=file,
    )  # fmt: skip


def _notes(scanner: Scanner, trajectory: Trajectory, profile: Profile) -> list[Note]:
    checked = [as_note(note) for note in islice(scanner.scan(trajectory, profile), _MOST_NOTES)]
    return sorted(checked, key=lambda note: -1 if note.step is None else note.step)


def as_note(value: object) -> Note:
    """A note, or a tuple like one; anything else is a mistake in the scanner."""
    if not isinstance(value, tuple) or not 3 <= len(value) <= 4:
        raise TypeError(f"a scanner yields (step, severity, message), not {type(value).__name__}")
    step, severity, message, *rest = value
    if not (step is None or isinstance(step, int)) or not isinstance(message, str):
        raise TypeError(f"a scanner yields (step, severity, message), not ({step!r}, {severity!r}, {message!r})"[:300])
    return Note(step, Severity(severity), message, str(rest[0]) if rest else "")
