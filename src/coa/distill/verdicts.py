"""The line in which a profile's checks give their verdict, for texts that have none.

The text's own verdict stands where it can be read. Otherwise a score, the verifier's words, or what the team did next
decides, and the step's meta says which.
"""

from __future__ import annotations

import re
from typing import Final

from pydantic import JsonValue

from coa.trajectory.profile import GradeVerdict, ScoreVerdict, Verdict

_NO: Final = re.compile(
    r"\b(?:incorrect|wrong|reject\w*|unsupported|not (?:correct|supported|verified|confirmed|valid)|invalid"
    r"|fail(?:ed|s)?|contradict\w*|cannot (?:confirm|verify)|unverified|false|no)\b",
    re.IGNORECASE,
)
_YES: Final = re.compile(
    r"\b(?:correct|right|accept\w*|approve\w*|supported|verified|confirmed|confirms|valid|pass(?:ed|es)?|true|yes|matches)\b",
    re.IGNORECASE,
)
_SCALES: Final = (1, 4, 5, 10, 100)


def with_score(
    text: str, verdict: Verdict | None, *, score: float | None, label: str, accepted: bool, highest: float = 0.0
) -> tuple[str, dict[str, JsonValue]]:
    """The text with a readable score, and where the score came from."""
    if not isinstance(verdict, ScoreVerdict) or verdict.holds(text) is not None:
        return text, {}
    number, source = _score(text, verdict, score, label, accepted, highest)
    return f"{text}\n{verdict.label}: {number}".strip(), {"derived": {verdict.label: source}}


def _score(
    text: str, verdict: ScoreVerdict, score: float | None, label: str, accepted: bool, highest: float
) -> tuple[int, str]:
    span = verdict.high - verdict.low
    if score is not None:
        # A judge's own scale is the smallest usual one that holds all its scores of the run: 1 beside a 5 is poor.
        most = max(score, highest)
        top = next((scale for scale in _SCALES if most <= scale), most)
        if top == verdict.high:
            return min(max(round(score), verdict.low), verdict.high), "score"
        return verdict.low + int(span * max(score, 0) / top), "score"
    for said in (label, text):
        # The last word counts: verifiers weigh both sides first.
        last_no = max((found.end() for found in _NO.finditer(said)), default=-1)
        last_yes = max((found.end() for found in _YES.finditer(said)), default=-1)
        if last_yes > last_no:
            return verdict.high, "words"
        if last_no >= 0:
            return verdict.low, "words"
    return (verdict.pass_at, "outcome") if accepted else (verdict.pass_at - 1, "outcome")


def with_grades(text: str, verdict: Verdict | None, *, replans: bool) -> tuple[str, dict[str, JsonValue]]:
    """The text with a grade for each point: the middle one, and the worst for the last point if a new plan follows."""
    if not isinstance(verdict, GradeVerdict) or verdict.holds(text) is not None:
        return text, {}
    middle, worst = verdict.grades[len(verdict.grades) // 2], verdict.grades[-1]
    grades = [worst if replans and point == verdict.points[-1] else middle for point in verdict.points]
    if len(verdict.grades) == 2 and not replans:
        grades = [verdict.grades[0]] * len(verdict.points)
    lines = "\n".join(f"{point}: {grade}" for point, grade in zip(verdict.points, grades, strict=True))
    return f"{text}\n{lines}", {"derived": {"grades": "outcome"}}
