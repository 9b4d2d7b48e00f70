"""Supervised fine-tuning: trajectories in, a model folder out. Only what the model wrote is trained.

result = coa.sft(coa.SftConfig(model="smollm2", data=("data/",)), out="runs/sft")
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from coa.progress import Progress, Silent, part
from coa.sft.checks import check
from coa.sft.config import SftConfig
from coa.sft.dry_run import SftPlan, plan
from coa.stage import Stage
from coa.tools import Tool
from coa.training.requirements import loading_torch, reports_for_all
from coa.training.run_folder import TrainingResult

__all__ = ["SftConfig", "SftPlan", "plan", "sft"]

sys.modules[__name__].__class__ = Stage


def sft(
    config: SftConfig,
    out: str | Path,
    *,
    tools: Mapping[str, Tool] | None = None,
    command: str | None = None,
    progress: Progress | None = None,
) -> TrainingResult:
    """Fine-tune a model on trajectories. Only text that the model wrote is trained.

    Blocks until training ends. The same call resumes from the last checkpoint in `out`. Settings and data are checked
    before torch is loaded. `coa.sft.plan(config)` makes the same checks and describes the run without starting it.

    Args:
        config: Model, data and hyperparameters.
        out: Run folder. The trained model is written to `out/model`.
        tools: Tool objects for evaluations during training, besides those that `config` names.
        command: The command to name in the model card.
        progress: Shows how far the work is.

    Returns:
        The model folder, the number of steps, and the final figures.

    Raises:
        CoaError: A setting or the data are wrong, a package is missing, or `out` belongs to another run.
    """
    shown = (progress if reports_for_all() else None) or Silent()
    with part(shown, "reading the data"):
        checked = check(config)
    with part(shown, "loading torch"), loading_torch():
        from coa.sft.train import train
    return train(config, Path(out), tools=tools, command=command, progress=progress, checked=checked)
