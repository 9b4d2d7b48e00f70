"""Engines: what carries out a run of RL.

An engine is one function. It gets the checked settings and a run folder, and leaves the same files there whichever
engine it is: `config.json`, `metrics.jsonl`, `groups/step-N.jsonl`, checkpoints, and `model/` at the end. `local` runs
in this process; `verl` runs on a Ray cluster. An engine's module is imported when it is used, because each needs
packages of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from coa.progress import Progress
from coa.rl.checks import Checked
from coa.rl.config import RlConfig
from coa.tools import Tool
from coa.training.requirements import loading_torch
from coa.training.run_folder import TrainingResult


class Engine(Protocol):
    def __call__(
        self,
        config: RlConfig,
        out: Path,
        *,
        tools: Mapping[str, Tool] | None = None,
        command: str | None = None,
        progress: Progress | None = None,
        checked: Checked | None = None,
    ) -> TrainingResult: ...


def open_engine(config: RlConfig) -> Engine:
    """The function that carries out the run."""
    if config.engine == "verl":
        from coa.rl.engines.verl.driver import train as train_on_ray

        return train_on_ray
    with loading_torch():
        from coa.rl.engines.local import train as train_here

        return train_here
