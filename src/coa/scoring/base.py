"""One way to ask how good an answer is, for filter, reward and benchmark alike.

A scorer gives a number or None. None means unscored: there is no usable verdict, for a reason that is not the answer's
(no gold, a judge that does not reply, a sandbox that cannot start). It is reported apart, kept out of means, and never
counted as zero. An answer that makes a scorer fail is wrong: otherwise a model could choose not to be judged. What is
raised is only what a person must repair before anything can be scored, such as a missing package.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pydantic import JsonValue

from coa.errors import CoaError
from coa.trajectory import CUT_SHORT, Task, Trajectory

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a scorer says about one answer. A value of None means unscored, which is not zero."""

    value: float | None
    reason: str
    rule: str = ""
    """Which scorer decided; a cascade passes on the one that did."""
    certain: bool = True
    """False where a scorer found no match but could not read the answer well enough to rule one out."""
    broken: bool = False
    """Without a value because something broke (time-out, crash, no usable reply), not because it does not apply."""
    detail: Mapping[str, JsonValue] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.rule}: {self.reason}" if self.rule else self.reason


class Scorer(Protocol):
    """Interface of a scorer: it judges one answer to one task. Any object with these members can be used."""

    @property
    def name(self) -> str: ...

    async def score(self, task: Task, answer: str | None) -> Verdict: ...

    async def close(self) -> None:
        """Give back processes and files; most scorers hold none."""


Rule = Callable[[Task, str], Verdict]
"""A scorer that only computes. It is asked when there are a gold answer and an answer."""


@dataclass(frozen=True, slots=True)
class PureScorer:
    name: str
    rule: Rule

    async def score(self, task: Task, answer: str | None) -> Verdict:
        return unanswerable(self.name, task, answer) or self.rule(task, answer or "")

    async def close(self) -> None:
        pass


def unanswerable(rule: str, task: Task, answer: str | None) -> Verdict | None:
    """The verdict where there is nothing to compare; None where there is."""
    if not any(gold.strip() for gold in task.answer):
        return Verdict(None, "the task has no gold answer", rule)
    if answer is None or not answer.strip():
        return Verdict(0.0, "no answer was given", rule)
    return None


async def verdict_of(scorer: Scorer, task: Task, answer: str | None) -> Verdict:
    """The scorer's verdict. Scorers may come from anywhere, and one may fail.

    If it fails on this answer but finds the gold right, the answer is at fault, and wrong; otherwise it is unscored.
    """
    try:
        verdict = await scorer.score(task, answer)
    except CoaError:
        raise  # a problem of the set-up, which every answer would have
    except Exception as error:  # the border to code of any origin
        log.debug("scorer %s failed", scorer.name, exc_info=error)
        reason = f"the scorer failed: {type(error).__name__}: {error}"[:300]
        if await _finds_gold_right(scorer, task):
            return Verdict(0.0, f"{reason}; on the gold answer it does not", scorer.name, certain=False)
        return Verdict(None, reason, scorer.name, broken=True)
    if verdict.value is not None and not math.isfinite(verdict.value):
        return Verdict(None, f"the scorer gave {verdict.value}", verdict.rule or scorer.name, broken=True)
    return verdict


async def _finds_gold_right(scorer: Scorer, task: Task) -> bool:
    if not task.answer:
        return False
    try:
        value = (await scorer.score(task, task.answer[0])).value
    except CoaError:
        raise
    except Exception:  # as above
        return False
    return value is not None and value > 0


async def score_trajectory(trajectory: Trajectory, scorer: Scorer, *, name: str | None = None) -> Trajectory:
    """A copy with one more entry in `scores`, under the scorer's name or the one given.

    A run that broke or was interrupted before it answered is unscored: its answer is unknown.
    """
    answer = trajectory.answer
    if answer is None and trajectory.stop in CUT_SHORT:
        why = trajectory.failure.message if trajectory.failure else f"{trajectory.stop.words}"
        verdict = Verdict(None, f"the run did not end: {why}"[:300], scorer.name)
    else:
        verdict = await verdict_of(scorer, trajectory.task, answer)
    return trajectory.scored(name or scorer.name, verdict.value, str(verdict))
