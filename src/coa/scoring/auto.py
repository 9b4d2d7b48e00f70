"""The cascade for tasks of any kind: cheap and strict rules first, a judge last; the verdict names what decided.

A rule decides when it finds the answer right, or when it has read both sides and rules it out. Otherwise the next one
is asked. If none decides, the last one that found no match counts, unless one broke: then the answer is unscored.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Final

from coa.errors import ProfileError
from coa.scoring.answers import golds
from coa.scoring.base import Scorer, Verdict, verdict_of
from coa.scoring.choice import is_choice
from coa.trajectory import Task, load_profile
from coa.trajectory.profile import AnswerKind

_FORMULA: Final = re.compile(r"\\[A-Za-z]+|\^|\$.+\$")
_KINDS: Final = ("ability", "answer_type", "category")


def rules_for(task: Task) -> list[str]:
    """Names of the scorers that may decide this task, in order; a judge comes after them."""
    if task.tests is not None:
        return ["code"]
    if is_choice(task):
        return ["choice", "exact"]
    if is_math(task):
        return ["math"]
    formula = any(_FORMULA.search(gold) for gold in golds(task))
    return ["exact", "numeric", *(["math"] if formula else [])]


def is_math(task: Task) -> bool:
    """Whether the task is one of mathematics, because its profile or its row says so."""
    said = any(str(task.meta.get(key) or "").casefold() == "math" for key in _KINDS)
    return said or (task.profile is not None and _answers(task.profile) is AnswerKind.MATH)


@cache
def _answers(profile: str) -> AnswerKind:
    try:
        return load_profile(profile).answers
    except ProfileError:  # a row names a profile that does not exist
        return AnswerKind.TEXT


class AutoScorer:
    """`find(name)` gives the scorer of that name, or None where there is none."""

    name = "auto"

    def __init__(self, find: Callable[[str], Scorer | None], *, judged: bool = False) -> None:
        self._find = find
        self._judged = judged
        self._parts: dict[str, Scorer | None] = {}

    async def score(self, task: Task, answer: str | None) -> Verdict:
        rules = rules_for(task)
        # Tests decide alone: what a program does is worth more than what a judge thinks of it.
        tried: list[Verdict] = []
        for rule in [*rules, *(["judge"] if self._judged and rules != ["code"] else [])]:
            scorer = self._part(rule)
            if scorer is None:
                tried.append(Verdict(None, "there is no such scorer here", rule))
                continue
            verdict = await verdict_of(scorer, task, answer)
            tried.append(verdict)
            if verdict.value is not None and (verdict.value > 0 or verdict.certain):
                break
        decided = self._decide(tried)
        return replace(decided, detail={**decided.detail, "tried": [verdict.rule for verdict in tried]})

    async def close(self) -> None:
        for scorer in self._parts.values():
            if scorer is not None:
                await scorer.close()

    def _decide(self, tried: list[Verdict]) -> Verdict:
        last = tried[-1]
        if last.value is not None and (last.value > 0 or last.certain):
            return last
        broken = [verdict for verdict in tried if verdict.broken]
        missed = [verdict for verdict in tried if verdict.value is not None]
        return (broken[-1:] or missed[-1:] or [last])[0]

    def _part(self, name: str) -> Scorer | None:
        if name not in self._parts:
            self._parts[name] = self._find(name)
        return self._parts[name]
