"""Agentic RL: tasks and a model folder in, a better model folder out, by DAPO with real tools.

result = coa.rl(coa.RlConfig(model="runs/sft", tasks="tasks.jsonl"), out="runs/rl")
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from coa.errors import ConfigError
from coa.models.places import check_model
from coa.progress import Progress
from coa.rl.config import RlConfig
from coa.stage import Stage
from coa.tools import Tool
from coa.training.requirements import loading_torch
from coa.training.run_folder import TrainingResult

__all__ = ["RlConfig", "rl"]

sys.modules[__name__].__class__ = Stage


def rl(
    config: RlConfig,
    out: str | Path,
    *,
    tools: Mapping[str, Tool] | None = None,
    command: str | None = None,
    progress: Progress | None = None,
) -> TrainingResult:
    """Train a model by reinforcement learning with real tools. Blocks; goes on from the checkpoints that `out` holds.

    `tools` are objects besides those that the config names. `command` is what the model card names as the command that
    made the model.
    """
    if config.tasks is None:
        raise ConfigError("there are no tasks to learn from", hint="add --tasks FILE")
    check_model(config.model)  # loading torch takes seconds
    with loading_torch():
        from coa.rl.loop import train
    return train(config, Path(out), tools=tools, command=command, progress=progress)
