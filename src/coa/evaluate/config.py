"""What an evaluation is: benchmarks, how to run the agent on them, and how to score the answers."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from coa.choices import Select
from coa.runtime import RunConfig
from coa.runtime.config import RayConfig
from coa.scoring.opening import JudgeConfig
from coa.shard import Shard


class EvalConfig(JudgeConfig, RayConfig):
    """Settings of `coa eval`. Where a setting is None, each benchmark's own protocol decides."""

    benchmarks: tuple[str, ...] = ()
    """Benchmarks by name (`coa eval list`), or files of tasks."""
    run: RunConfig = RunConfig()
    """How to run the agent."""
    samples: int | None = Field(None, ge=1)
    """Number of attempts at each task."""
    best_of: int | None = Field(None, ge=2)
    """Number of attempts at each task from which one is selected and counted."""
    select: Select = Select.MAJORITY
    """How to select one of the `best_of` attempts."""
    pass_at: tuple[int, ...] = ()
    """Further values of k for which to report pass@k."""
    limit: int | None = Field(None, ge=1)
    """Number of tasks to take from the beginning of each benchmark."""
    shard: Shard | None = None
    """Part of the tasks to evaluate, as i/n, after `limit`: n machines with a folder each do 1/n to n/n, and
    `coa eval merge` adds the folders up."""
    scorer: str | None = None
    """Scorer to use instead of the benchmark's: exact, f1, math, code, judge, auto, module:function, ..."""
    data: Path | None = None
    """Folder with benchmark files, looked at before $COA_DATA and the caches."""
    tests: Path | None = None
    """Release file of LiveCodeBench, or a folder of them, with the full tests of programs. They are joined by
    question_id and take the place of the tests in the tasks, which in some files are only the samples."""
    retry_failed: bool = False
    """Run failed and interrupted attempts of the output folder again."""

    @model_validator(mode="after")
    def _consistent(self) -> EvalConfig:
        if self.best_of is not None and self.samples not in (None, self.best_of):
            raise ValueError("best_of=N makes N attempts at each task; leave samples out")
        if len(set(self.benchmarks)) < len(self.benchmarks):
            raise ValueError("a benchmark is named twice; samples=N makes several attempts")
        return self

    @property
    def selection(self) -> Select | None:
        return self.select if self.best_of is not None else None
