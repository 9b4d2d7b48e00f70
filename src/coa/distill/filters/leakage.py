"""Prompts that give the answer away: whoever trains on them learns to copy, not to find."""

from __future__ import annotations

import re
from typing import Final

from coa.distill.filters.base import Dropped, FilterInput, Reason, filter_of
from coa.distill.filters.quality import QUALITY
from coa.trajectory import Trajectory

LEAKED_ANSWER: Final = Reason("leaked_answer")

_CUE: Final = r"(?:answer|solution|result|ground[ _-]?truth)\b[^.?!\n]{0,20}?(?:\bis\b|\bwas\b|:|=)\W{0,3}"
_ALTERNATIVES: Final = re.compile(r"\bor\b|\bbetween\b|\bwhich of\b|\bcompare|\bthan\b|(?m:^\s*\(?[A-E][).:])", re.I)
_SHORT: Final = 3
"""Answers of fewer characters, and numbers of fewer digits, stand in many questions by chance."""


@filter_of(QUALITY, LEAKED_ANSWER)
def leakage(trajectory: Trajectory, given: FilterInput) -> Dropped | None:
    task, question = trajectory.task, trajectory.task.question
    prompt = [message.content for message in trajectory.prompt or ()]
    # The profile's own prompt is the same for every task and knows no answer.
    around = " \n ".join(text.replace(question, " ") for text in prompt)
    everything = f"{question}\n{around}".casefold()
    for gold in filter(None, map(str.strip, task.answer)):
        if gold.casefold() not in everything:
            continue
        spelled = rf"(?<!\w){re.escape(gold)}(?!\w)"
        if re.search(_CUE + spelled, f"{question}\n{around}", re.IGNORECASE):
            return Dropped(LEAKED_ANSWER, f"the prompt says that the answer is {gold[:80]!r}")
        if len(gold) < _SHORT or gold.casefold() in ("yes", "no", "true", "false"):
            continue
        if re.search(spelled, around, re.IGNORECASE):
            return Dropped(LEAKED_ANSWER, f"the prompt around the question contains {gold[:80]!r}")
        # "Which is older, A or B?" must name its answer.
        if re.search(spelled, question, re.IGNORECASE) and not _ALTERNATIVES.search(question):
            return Dropped(LEAKED_ANSWER, f"the question contains its answer {gold[:80]!r}")
    return None
