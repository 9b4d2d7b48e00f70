"""Where the format of a run was wrong: calls that could not be read, rules of the profile broken, repairs made.

Each rule and each kind of repair is one finding of a run, at the step where it happens first: one habit of a model can
break a rule at every step. A recorded team never knew the profile and breaks none of its rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from coa.scan.finding import Note, Severity
from coa.scan.steps import error_of, excerpt, is_observation
from coa.trajectory import Profile, Rule, Step, Stop, Trajectory, check

_REFUSALS: Final = {
    "format": "unreadable call",
    "no_such_tool": "no such tool",
    "forged_observation": "forged observation",
    "unfinished": "no answer yet",
}
"""What the runtime answers to, with the kind under which it is reported."""
_WORDED: Final = {
    "error: the content of ": "unreadable call",
    "error: the tool ": "no such tool",
    "error: observations are written by the tools": "forged observation",
    "note: there is no answer yet": "no answer yet",
}
"""The same in files that keep no meta."""
_UNFINISHED: Final = (Rule.NO_ANSWER, Rule.MISSING_OBSERVATION)
_OWN_END: Final = (Stop.ANSWERED, Stop.UNANSWERED)
"""Runs with another stop were ended from outside, so that they lack an answer is not the model's mistake."""


class RefusedFormats:
    name = "refused_formats"
    about = "calls that could not be read, rules of the profile broken, and repairs of the format"

    def scan(self, trajectory: Trajectory, profile: Profile) -> Iterator[Note]:
        steps, found = trajectory.steps, dict[str, list[tuple[int, str]]]()
        refused = set[int]()
        for index, step in enumerate(steps):
            if is_observation(step) and (kind := _refusal(step)) is not None:
                refused.add(index - 1)
                found.setdefault(kind, []).append((max(index - 1, 0), excerpt(step.text, 160)))
        for violation in () if "team" in trajectory.meta else check(steps, profile):
            if violation.rule in _UNFINISHED and trajectory.stop not in _OWN_END and violation.step >= len(steps):
                continue
            if violation.step in refused and violation.rule in (Rule.SHAPE, Rule.FORGED_OBSERVATION):
                continue  # the runtime has said so already
            if violation.rule is Rule.FOREIGN_AUTHOR and "fallback" in steps[violation.step].meta:
                continue  # the runtime took the last suggestion for the answer
            at = min(violation.step, len(steps) - 1)
            kind = violation.rule.value.replace("_", " ")
            found.setdefault(kind, []).append((at, excerpt(violation.message, 160)))
        for kind, places in found.items():
            forged = kind == "forged observation"
            at, message = places[0]
            times = f" ({len(places)} times)" if len(places) > 1 else ""
            severity = Severity.ERROR if forged else Severity.WARNING
            yield Note(at if at >= 0 else None, severity, f"{kind}{times}: {message}", kind=kind)
        yield from _repairs(steps)


def _refusal(step: Step) -> str | None:
    if error := error_of(step):
        return _REFUSALS.get(error)
    if "ok" in step.meta:
        return None
    return next((kind for opening, kind in _WORDED.items() if step.text.startswith(opening)), None)


def _repairs(steps: tuple[Step, ...]) -> Iterator[Note]:
    made: dict[str, list[tuple[int, str]]] = {}
    for index, step in enumerate(steps):
        for repair in step.repairs:
            made.setdefault(repair.kind.value.replace("_", " "), []).append((index, repair.detail))
    for kind, places in made.items():
        index, detail = places[0]
        times = f" {len(places)} times" if len(places) > 1 else ""
        more = f": {excerpt(detail, 160)}" if detail else ""
        yield Note(index, Severity.INFO, f"repaired{times}: {kind}{more}", kind=f"repaired {kind}")
