"""Agentic RL: tasks and a model folder in, a better model folder out, by DAPO with real tools.

result = coa.rl(coa.RlConfig(model="runs/sft", tasks="tasks.jsonl"), out="runs/rl")
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from coa.progress import Progress, Silent, part
from coa.rl.checks import check
from coa.rl.config import RlConfig
from coa.rl.dry_run import RlPlan, plan
from coa.rl.engines import open_engine
from coa.stage import Stage
from coa.tools import Tool
from coa.training.requirements import reports_for_all
from coa.training.run_folder import TrainingResult

__all__ = ["RlConfig", "RlPlan", "plan", "rl"]

sys.modules[__name__].__class__ = Stage


def rl(
    config: RlConfig,
    out: str | Path,
    *,
    tools: Mapping[str, Tool] | None = None,
    command: str | None = None,
    progress: Progress | None = None,
) -> TrainingResult:
    """Train a model by reinforcement learning with real tools.

    Blocks until training ends. The same call resumes from the last checkpoint in `out`. Settings, reward and tasks are
    checked before torch is loaded. `coa.rl.plan(config)` makes the same checks and describes the run without starting
    it.

    Args:
        config: Model, tasks, reward, algorithm and hyperparameters.
        out: Run folder. The trained model is written to `out/model`, and every scored attempt is kept.
        tools: Tool objects, besides those that `config` names.
        command: The command to name in the model card.
        progress: Shows how far the work is.

    Returns:
        The model folder, the number of steps, and the final figures.

    Raises:
        CoaError: A setting, the reward or the tasks are wrong, a package is missing, or `out` belongs to another run.
    """
    shown = (progress if reports_for_all() else None) or Silent()
    with part(shown, "reading the tasks"):
        checked = check(config)
    with part(shown, "loading the engine"):
        train = open_engine(config)
    return train(config, Path(out), tools=tools, command=command, progress=progress, checked=checked)
