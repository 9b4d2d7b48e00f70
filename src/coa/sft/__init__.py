"""Supervised fine-tuning: trajectories in, a model folder out. Only what the model wrote is trained.

result = coa.sft(coa.SftConfig(model="smollm2", data=("data/",)), out="runs/sft")
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from coa.errors import ConfigError
from coa.models.places import check_model
from coa.progress import Progress
from coa.sft.config import SftConfig
from coa.stage import Stage
from coa.tools import Tool
from coa.training.requirements import loading_torch
from coa.training.run_folder import TrainingResult

__all__ = ["SftConfig", "sft"]

sys.modules[__name__].__class__ = Stage


def sft(
    config: SftConfig,
    out: str | Path,
    *,
    tools: Mapping[str, Tool] | None = None,
    command: str | None = None,
    progress: Progress | None = None,
) -> TrainingResult:
    """Fine-tune a model on trajectories. Blocks; goes on from the checkpoints that `out` holds.

    `tools` are objects for the evaluations during training, besides those that the config names. `command` is what the
    model card names as the command that made the model.
    """
    if not config.data:
        raise ConfigError("there is no data to train on", hint="add --data FILE, a folder, or a hub id")
    check_model(config.model)  # loading torch takes seconds
    with loading_torch():
        from coa.sft.train import train
    return train(config, Path(out), tools=tools, command=command, progress=progress)
