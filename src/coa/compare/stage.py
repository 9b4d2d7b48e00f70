"""The stage: read runs of any origin, compare them on the tasks that they share, and write the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import orjson

from coa.blocking import run_blocking
from coa.compare.comparison import compare_runs
from coa.compare.page import comparison_page
from coa.compare.reader import RunReader
from coa.errors import ConfigError
from coa.evaluate.metrics import Estimate
from coa.folder import lock, write_atomic
from coa.runtime.sides import sides_of
from coa.scoring.opening import JudgeConfig


@dataclass(frozen=True)
class RunFigures:
    """One of the runs. `data` is its part of report.json."""

    data: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.data["name"])

    @property
    def pass_at_1(self) -> float:
        return float(self.data["results"]["metrics"]["pass@1"]["value"])

    @property
    def tokens_per_success(self) -> Estimate | None:
        """None without a success."""
        return _estimate(self.data["tokens_per_success"])


@dataclass(frozen=True)
class ComparedPair:
    """Two of the runs, task by task: what the second has more than the first. `data` is its part of report.json."""

    data: Mapping[str, Any]

    @property
    def names(self) -> tuple[str, str]:
        return self.data["first"], self.data["second"]

    @property
    def success(self) -> Estimate | None:
        """Difference in success, with its 95 % interval."""
        return _estimate(self.data["success"])

    @property
    def only_first(self) -> list[str]:
        """Tasks that only the first run solved; the first ten thousand of them. `data` has their number."""
        return list(self.data["only_first"])

    @property
    def only_second(self) -> list[str]:
        return list(self.data["only_second"])


@dataclass(frozen=True)
class Comparison:
    """Result of `compare`. `data` is the content of report.json."""

    data: Mapping[str, Any]

    @property
    def shared_tasks(self) -> int:
        return int(self.data["shared_tasks"])

    @property
    def runs(self) -> list[RunFigures]:
        return [RunFigures(run) for run in self.data["runs"]]

    @property
    def pairs(self) -> list[ComparedPair]:
        return [ComparedPair(pair) for pair in self.data["pairs"]]


def compare(
    runs: Sequence[str | Path],
    out: str | Path | None = None,
    *,
    tokenizer: str | None = None,
    tasks: str | None = None,
    scorer: str | None = None,
    judge: JudgeConfig | None = None,
    profile: str | None = None,
    every_task: bool = False,
    seed: int = 0,
) -> Comparison:
    """Compare runs: success, tokens and tool calls per success with intervals, and paired differences. Blocks.

    Args:
        runs: Evaluations, folders of `coa teach`, or files of trajectories. Shards of one evaluation are added up.
        out: Folder for report.json and report.html.
        tokenizer: Count the tokens of all runs again with this tokenizer.
        tasks: File with the right answers, if the runs do not carry them.
        scorer: Scorer for runs that have no scores.
        judge: The model that judges answers, for scorers that need one.
        profile: Read all runs with this profile, whatever profile they carry.
        every_task: Use all tasks of each run, not only the tasks that all runs have in common.
        seed: Seed of the bootstrap.

    Returns:
        The figures of each run and of each pair of runs.

    Raises:
        CoaError: A run cannot be read, or the runs have no task in common.
    """
    paths = [Path(run) for run in runs]
    if len(paths) != len({str(path) for path in paths}):
        raise ConfigError("a run is named twice")
    sides = sides_of(paths)
    with RunReader(tokenizer=tokenizer, tasks=tasks, scorer=scorer, judge=judge, profile=profile) as reader:
        found = compare_runs(run_blocking(reader.read_all(sides)), shared=not every_task, seed=seed)
    if out is not None:
        data = orjson.dumps(found, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        with lock(out):
            write_atomic(Path(out) / "report.json", data)
            write_atomic(Path(out) / "report.html", comparison_page(found, out))
    return Comparison(found)


def _estimate(value: Mapping[str, Any] | None) -> Estimate | None:
    return None if value is None else Estimate(**{**value, "high": inf if value["high"] is None else value["high"]})
