"""Scorers by name: `exact`, `f1`, `numeric`, `math`, `choice`, `code`, `judge`, `auto`, what others add, and
`module:function` for a function of the user's.

Other packages add a scorer under the entry point group `coa.scorers`, or with `register`.
"""

from __future__ import annotations

import inspect
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from coa.errors import ScoringError
from coa.importing import import_function, load_entry_point
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

GROUP: Final = "coa.scorers"
"""Entry points of this group are functions `(task, answer) -> number | None | Verdict`."""


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
    return sorted(_factories())


def scorer_for(name: str, *, judge: Model | None = None, verdicts: VerdictCache | None = None) -> Scorer:
    """Open a scorer. Call its `close` when you are done.

    Args:
        name: Name of a scorer, or `module:function`.
        judge: The model that judges answers, for scorers that need one.
        verdicts: Cache of the judge's verdicts.

    Raises:
        ScoringError: There is no such scorer, or it lacks a package or a judge.
    """
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
    elif name not in _factories():
        raise _unknown(name)
    elif name == "judge" and not judged:
        raise _without_judge()


def _unknown(name: str) -> ScoringError:
    hint = f"use one of {', '.join(scorer_names())}, or module:function"
    return ScoringError(f"there is no scorer {name!r}", hint=hint)


def _without_judge() -> ScoringError:
    return ScoringError("scoring by a judge needs a model that judges", hint="add --judge URL")


def _made(name: str, means: Means) -> Scorer | None:
    factory = _factories().get(name)
    return None if factory is None else factory(means)


def _factories() -> Mapping[str, Factory]:
    """Ours and those that are registered; behind them, those of installed packages."""
    return ChainMap(_FACTORIES, _installed())


def _installed() -> dict[str, Factory]:
    return {point.name: _of_entry_point(point) for point in entry_points(group=GROUP)}


def _of_entry_point(point: EntryPoint) -> Factory:
    return lambda _: FunctionScorer(point.name, load_entry_point(point, what="the scorer", error=ScoringError))


class FunctionScorer:
    """A user's function `(task, answer) -> number | None | Verdict`, plain or async, by import path or as it is."""

    def __init__(self, name: str, function: Callable[[Task, str | None], Any] | None = None) -> None:
        self.name = name
        self._function = function or import_function(name, what="the scorer", error=ScoringError)

    async def score(self, task: Task, answer: str | None) -> Verdict:
        found = self._function(task, answer)
        if inspect.isawaitable(found):
            found = await found
        if isinstance(found, Verdict):
            return found if found.rule else replace(found, rule=self.name)
        if found is None:
            return Verdict(None, "the function returned None", self.name)
        if not isinstance(found, int | float):
            return Verdict(None, f"it returned {type(found).__name__}, not a number", self.name, broken=True)
        return Verdict(float(found), f"{float(found):g}", self.name)

    async def close(self) -> None:
        pass
