"""Several runs side by side on the same tasks: success, what a success took, and how certain the differences are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from math import isfinite
from statistics import fmean
from typing import Any, Final

from coa.errors import EvaluationError
from coa.evaluate.attempts import GROUPS, Attempt, by_task
from coa.evaluate.metrics import Estimate, TaskFigures, bootstrap, paired, per_success
from coa.evaluate.summary import Figures, TaskAttempts, figures, times

_MOST_PAIRED: Final = 5
"""Up to this number of runs, each is compared with each; if there are more, each is compared with the first."""


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One side of a comparison."""

    name: str
    path: str
    attempts: Sequence[Attempt]
    kind: str = "model"
    """`model`: one model plays every agent. `team`: a multi-agent system."""
    scorer: str = ""
    notes: tuple[str, ...] = ()


def compare_runs(
    runs: Sequence[ComparedRun], *, shared: bool = True, groups: Sequence[str] = GROUPS, seed: int = 0
) -> Figures:
    """With `shared`, over the tasks that all runs hold: success on other tasks says nothing about these."""
    tasks = [by_task(run.attempts) for run in runs]
    common = sorted(set.intersection(*(set(found) for found in tasks)))
    if shared and not common:
        raise EvaluationError(
            f"no task is in all of {', '.join(run.name for run in runs)}",
            hint="compare runs over the same tasks; --tasks FILE finds tasks of traces by their question; --all drops "
            "the condition",
        )
    shown = [{task: found[task] for task in common} if shared else found for found in tasks]
    return {
        "shared_tasks": len(common),
        "tasks_left_out": [len(found) - len(part) for found, part in zip(tasks, shown, strict=True)],
        "runs": [_row(run, found, groups, seed) for run, found in zip(runs, shown, strict=True)],
        "pairs": [
            _pair(runs[i], runs[j], tasks[i], tasks[j], seed)
            for i, j in combinations(range(len(runs)), 2)
            if (len(runs) <= _MOST_PAIRED or i == 0) and set(tasks[i]) & set(tasks[j])
        ],
    }


def _row(run: ComparedRun, tasks: TaskAttempts, groups: Sequence[str], seed: int) -> Figures:
    samples = max(map(len, tasks.values()), default=1)
    of_tasks = task_figures(tasks, sorted(tasks))
    statistics = [per_success(of_tasks, "tokens"), per_success(of_tasks, "tool_calls")]
    tokens, calls = bootstrap(len(of_tasks), statistics, seed=seed)
    return {
        "name": run.name,
        "path": run.path,
        "kind": run.kind,
        "scorer": run.scorer,
        "notes": list(run.notes),
        **figures(tasks, samples=samples, planned=len(tasks), groups=groups),
        "tokens_per_success": _interval(tokens),
        "tool_calls_per_success": _interval(calls),
        "timing": times(tasks),
    }


def _pair(first: ComparedRun, second: ComparedRun, before: TaskAttempts, after: TaskAttempts, seed: int) -> Figures:
    common = sorted(set(before) & set(after))
    old, new = task_figures(before, common), task_figures(after, common)
    found = paired(old, new, seed=seed)
    lost = [task for task, a, b in zip(common, old, new, strict=True) if a.success > 0.5 >= b.success]
    won = [task for task, a, b in zip(common, old, new, strict=True) if b.success > 0.5 >= a.success]
    return {
        "first": first.name,
        "second": second.name,
        "tasks": found.tasks,
        "success": _interval(found.success),
        "tokens_per_success": _interval(found.tokens_per_success),
        "tool_calls_per_success": _interval(found.tool_calls_per_success),
        "only_first": lost,
        "only_second": won,
    }


def task_figures(tasks: TaskAttempts, order: Sequence[str]) -> list[TaskFigures]:
    return [
        TaskFigures(
            fmean(float(attempt.right) for attempt in tasks[task]),
            fmean(attempt.usage.total_tokens for attempt in tasks[task]),
            fmean(attempt.usage.tool_calls for attempt in tasks[task]),
        )
        for task in order
    ]


def _interval(value: Estimate | None) -> dict[str, Any] | None:
    """As JSON; an interval without an upper end has None there, because JSON has no infinity."""
    return None if value is None else {**asdict(value), "high": value.high if isfinite(value.high) else None}
