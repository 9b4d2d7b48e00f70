"""The texts of steps: one text divided between two steps, and the line in which a check gives its verdict.

A text is cut between paragraphs, lines or sentences, never inside one, and nothing is lost or added. A verdict that can
be read in the text is kept. Otherwise a score, the verifier's words, or what the team did next decides, and the step's
meta says which.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from pydantic import JsonValue

from coa.trajectory.profile import GradeVerdict, ScoreVerdict, Verdict

_CUTS: Final = (re.compile(r"\n[ \t]*\n\s*"), re.compile(r"\n\s*"), re.compile(r"(?<=[.!?;])[\"')\]]*\s+(?=[^\s])"))
_PLAN_HEADING: Final = re.compile(r"^[#*\s\d.]*(?:updated\s+|new\s+)?plan\b[^\n]{0,40}$", re.IGNORECASE | re.MULTILINE)
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


def share_out(pieces: Sequence[str], slots: int, *, main: int) -> list[str] | None:
    """The pieces as `slots` texts in their order; `main` gets the bulk, the others a sentence each. None if too few."""
    if not pieces:
        return None
    if len(pieces) >= slots:
        surplus = len(pieces) - slots
        return [*pieces[:main], "\n\n".join(pieces[main : main + surplus + 1]), *pieces[main + surplus + 1 :]]
    # The last piece is what the model said in the end; the earlier ones come before it as they are.
    kept, last = list(pieces[:-1]), pieces[-1]
    wanted = slots - len(kept)
    for cut in _CUTS:
        places = [match.span() for match in cut.finditer(last)]
        if len(places) >= wanted - 1:
            bulk = min(max(main - len(kept), 0), wanted - 1)
            chosen = places[:bulk] + places[len(places) - (wanted - 1 - bulk) :]
            starts = [0, *(end for _, end in chosen)]
            ends = [*(start for start, _ in chosen), len(last)]
            parts = [last[start:end].strip() for start, end in zip(starts, ends, strict=True)]
            if all(parts):
                return [*kept, *parts]
    return None


def plan_parts(pieces: Sequence[str]) -> tuple[str, str]:
    """Thought and plan: facts before a heading "Plan" are the thought, which is empty where all is plan."""
    if len(pieces) == 1 and (heading := _PLAN_HEADING.search(pieces[0])) and pieces[0][: heading.start()].strip():
        return pieces[0][: heading.start()].strip(), pieces[0][heading.start() :].strip()
    parts = share_out(pieces, 2, main=1)
    return ("", "\n\n".join(pieces)) if parts is None else (parts[0], parts[1])


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
        # The judge's scale is the smallest usual one that holds all its scores of the run: 1 beside a 5 is poor.
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
