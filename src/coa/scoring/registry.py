"""Scorers by name: `exact`, `f1`, `numeric`, `math`, `choice`, `code`, `judge`, `auto`, what others register, and
`module:function` for a function of the user's."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace

from coa.errors import ScoringError
from coa.importing import import_function
from coa.models.base import Model
from coa.scoring.auto import AutoScorer
from coa.scoring.base import PureScorer, Scorer, Verdict
from coa.scoring.choice import choice
from coa.scoring.exact import exact, f1
from coa.scoring.judge import JudgeScorer
from coa.scoring.math import MathScorer
from coa.scoring.numeric import numeric
from coa.scoring.verdicts import VerdictCache
from coa.trajectory import Task


@dataclass(frozen=True, slots=True)
class Means:
    """What scorers may need and callers have. The caller closes both."""

    judge: Model | None = None
    verdicts: VerdictCache | None = None


Factory = Callable[[Means], Scorer]


def _code(_: Means) -> Scorer:
    from coa.scoring.code.scorer import CodeScorer  # brings the sandbox, which most scoring never needs

    return CodeScorer()


def _judge(means: Means) -> Scorer:
    if means.judge is None:
        raise _without_judge()
    return JudgeScorer(means.judge, verdicts=means.verdicts)


_FACTORIES: dict[str, Factory] = {
    "exact": lambda _: PureScorer("exact", exact),
    "f1": lambda _: PureScorer("f1", f1),
    "numeric": lambda _: PureScorer("numeric", numeric),
    "choice": lambda _: PureScorer("choice", choice),
    "math": lambda _: MathScorer(),
    "code": _code,
    "judge": _judge,
    "auto": lambda means: AutoScorer(lambda name: _made(name, means), judged=means.judge is not None),
}


def register(name: str, factory: Factory) -> None:
    """Make a scorer known by name; `auto` uses the one called `code` for tasks with tests."""
    _FACTORIES[name] = factory


def scorer_names() -> list[str]:
    return sorted(_FACTORIES)


def scorer_for(name: str, *, judge: Model | None = None, verdicts: VerdictCache | None = None) -> Scorer:
    """The scorer of that name. Close it when done."""
    if ":" in name:
        return FunctionScorer(name)
    scorer = _made(name, Means(judge, verdicts))
    if scorer is None:
        raise _unknown(name)
    return scorer


def check_scorer(name: str, *, judged: bool = False) -> None:
    """Refuse a scorer that `scorer_for` would refuse, before anything is opened. `judged`: there is a judge."""
    if ":" in name:
        import_function(name, what="the scorer", error=ScoringError)
    elif name not in _FACTORIES:
        raise _unknown(name)
    elif name == "judge" and not judged:
        raise _without_judge()


def _unknown(name: str) -> ScoringError:
    hint = f"use one of {', '.join(scorer_names())}, or module:function"
    return ScoringError(f"there is no scorer {name!r}", hint=hint)


def _without_judge() -> ScoringError:
    return ScoringError("scoring by a judge needs a model that judges", hint="add --judge URL")


def _made(name: str, means: Means) -> Scorer | None:
    return _FACTORIES[name](means) if name in _FACTORIES else None


class FunctionScorer:
    """A user's function `(task, answer) -> number | None | Verdict`, plain or async, by import path."""

    def __init__(self, path: str) -> None:
        self.name = path
        self._function = import_function(path, what="the scorer", error=ScoringError)

    async def score(self, task: Task, answer: str | None) -> Verdict:
        found = self._function(task, answer)
        if inspect.isawaitable(found):
            found = await found
        if isinstance(found, Verdict):
            return found if found.rule else replace(found, rule=self.name)
        if found is None:
            return Verdict(None, "no verdict", self.name)
        if not isinstance(found, int | float):
            return Verdict(None, f"it returned {type(found).__name__}, not a number", self.name, broken=True)
        return Verdict(float(found), f"{float(found):g}", self.name)

    async def close(self) -> None:
        pass
