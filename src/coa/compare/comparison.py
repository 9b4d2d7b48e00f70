"""Several runs side by side on the same tasks: success, what a success took, and how certain the differences are.

The runs are read once, task by task, in the order of their ids, and side by side: what is kept of a task is a few
numbers for each run. So time grows with the number of runs and memory hardly does.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from math import isfinite
from typing import Any, Final

from coa.compare.bootstrap import (
    Sums,
    TaskColumns,
    cost_interval,
    paired,
    resample,
    tokens_per_success,
    tool_calls_per_success,
)
from coa.errors import EvaluationError
from coa.evaluate.attempt_store import AttemptStore
from coa.evaluate.attempts import GROUPS, Attempt
from coa.evaluate.metrics import Estimate
from coa.evaluate.summary import Figures, Summary

_MOST_PAIRED: Final = 5
"""Up to this number of runs, each is compared with each; if there are more, each is compared with the first."""
_MOST_NAMED: Final = 10_000
"""Number of tasks that the report names of those at which two runs disagree; the others are only counted."""


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One side of a comparison."""

    name: str
    path: str
    attempts: AttemptStore
    kind: str = "model"
    """`model`: one model plays every agent. `team`: a multi-agent system."""
    scorer: str = ""
    notes: tuple[str, ...] = ()
    shards: tuple[str, ...] = ()
    """The folders that were added up, if the run was made in several."""


@dataclass
class _Side:
    """What is kept of one run."""

    summary: Summary
    """Of the tasks that are shown."""
    columns: TaskColumns = field(default_factory=TaskColumns)
    """Of all tasks of the run."""
    shown: array[int] = field(default_factory=lambda: array("I"))
    """The rows of the tasks that are shown."""

    def add(self, attempts: Sequence[Attempt], *, shown: bool) -> None:
        count = len(attempts)
        right, usages = sum(attempt.right for attempt in attempts), [attempt.usage for attempt in attempts]
        tokens, calls = sum(usage.total_tokens for usage in usages), sum(usage.tool_calls for usage in usages)
        if shown:
            self.summary.add(attempts)
            self.shown.append(len(self.columns))
        self.columns.add(right / count, tokens / count, calls / count)

    @property
    def shown_columns(self) -> TaskColumns:
        return self.columns.at(self.shown)


@dataclass
class _Pair:
    """Two runs and the tasks that both have."""

    first: int
    second: int
    places: tuple[array[int], array[int]] = field(default_factory=lambda: (array("I"), array("I")))
    """The rows of these tasks in the columns of each run."""
    only: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))
    counts: list[int] = field(default_factory=lambda: [0, 0])

    def add(self, task: str, sides: Sequence[_Side]) -> None:
        wins = []
        for at, places in zip((self.first, self.second), self.places, strict=True):
            success = sides[at].columns.success
            places.append(len(success) - 1)
            wins.append(success[-1] > 0.5)
        if wins[0] != wins[1]:
            which = 0 if wins[0] else 1
            self.counts[which] += 1
            if self.counts[which] <= _MOST_NAMED:
                self.only[which].append(task)


def compare_runs(
    runs: Sequence[ComparedRun], *, shared: bool = True, groups: Sequence[str] = GROUPS, seed: int = 0
) -> Figures:
    """With `shared`, over the tasks that all runs hold: success on other tasks says nothing about these."""
    sides = [_Side(Summary(groups)) for _ in runs]
    pairs = [_Pair(i, j) for i, j in combinations(range(len(runs)), 2) if len(runs) <= _MOST_PAIRED or i == 0]
    common = 0
    for task, found in _side_by_side([run.attempts for run in runs]):
        everywhere = len(found) == len(runs)
        common += everywhere
        for at, attempts in found.items():
            sides[at].add(attempts, shown=everywhere or not shared)
        for pair in pairs:
            if pair.first in found and pair.second in found:
                pair.add(task, sides)
    if shared and not common:
        raise EvaluationError(
            f"no task is in all of {', '.join(run.name for run in runs)}",
            hint="compare runs over the same tasks; --tasks FILE finds tasks of traces by their question; --all drops "
            "the condition",
        )
    columns = [side.shown_columns for side in sides]
    # With `shared`, the tasks are the same for all runs, and so are the resamples.
    resampled = resample(columns, seed=seed) if shared else [resample([own], seed=seed)[0] for own in columns]
    return {
        "shared_tasks": common,
        "tasks_left_out": [len(side.columns) - len(side.shown) for side in sides],
        "runs": [
            _row(run, side.summary, own, sums)
            for run, side, own, sums in zip(runs, sides, columns, resampled, strict=True)
        ],
        "pairs": [
            _pair(runs, sides, pair, resampled if shared and len(pair.places[0]) == common else None, seed)
            for pair in pairs
            if pair.places[0]
        ],
    }


def _side_by_side(stores: Sequence[AttemptStore]) -> Iterator[tuple[str, dict[int, list[Attempt]]]]:
    """Each task with its attempts in those of the stores that have it, by the number of the store."""
    readers = [iter(store) for store in stores]
    waiting = {at: item for at, reader in enumerate(readers) if (item := next(reader, None)) is not None}
    while waiting:
        task = min(item[0] for item in waiting.values())
        found = {at: item[1] for at, item in waiting.items() if item[0] == task}
        for at in found:
            if (item := next(readers[at], None)) is None:
                del waiting[at]
            else:
                waiting[at] = item
        yield task, found


def _row(run: ComparedRun, summary: Summary, columns: TaskColumns, resampled: Sequence[Sums]) -> Figures:
    return {
        "name": run.name,
        "path": run.path,
        "shards": list(run.shards),
        "kind": run.kind,
        "scorer": run.scorer,
        "notes": list(run.notes),
        **summary.figures(samples=summary.samples, planned=summary.counts.tasks),
        "tokens_per_success": _interval(cost_interval(columns, resampled, tokens_per_success)),
        "tool_calls_per_success": _interval(cost_interval(columns, resampled, tool_calls_per_success)),
        "timing": summary.times(),
    }


def _pair(
    runs: Sequence[ComparedRun], sides: Sequence[_Side], pair: _Pair, resampled: Sequence[Sequence[Sums]] | None,
    seed: int,
) -> Figures:  # fmt: skip
    """`resampled` is of all runs, if the tasks of these two are the tasks that all share."""
    before, after = (
        sides[at].columns.at(rows) for at, rows in zip((pair.first, pair.second), pair.places, strict=True)
    )
    both = (resampled[pair.first], resampled[pair.second]) if resampled else None
    found = paired(before, after, both or resample([before, after], seed=seed))
    return {
        "first": runs[pair.first].name,
        "second": runs[pair.second].name,
        "tasks": found.tasks,
        "success": _interval(found.success),
        "tokens_per_success": _interval(found.tokens_per_success),
        "tool_calls_per_success": _interval(found.tool_calls_per_success),
        "only_first": pair.only[0],
        "only_second": pair.only[1],
        "only_first_tasks": pair.counts[0],
        "only_second_tasks": pair.counts[1],
    }


def _interval(value: Estimate | None) -> dict[str, Any] | None:
    """As JSON; an interval without an upper end has None there, because JSON has no infinity."""
    return None if value is None else {**asdict(value), "high": value.high if isfinite(value.high) else None}
