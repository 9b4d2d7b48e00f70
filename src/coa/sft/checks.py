"""What fine-tuning needs besides weights, checked before torch is loaded: settings, data, tasks, the model's name.

A mistake in any of them is reported at once, not after the half minute that torch and the weights take.
"""

from __future__ import annotations

from dataclasses import dataclass

from coa.errors import ConfigError, TrainingError
from coa.models.footprint import ModelShape, shape_of
from coa.models.places import refuse_untrainable
from coa.scoring.registry import check_scorer
from coa.sft.config import SftConfig
from coa.sft.data import SftData, asked, load
from coa.tools.registry import check_tools
from coa.training.requirements import refuse_absent
from coa.trajectory import Task
from coa.trajectory.formats.tasks import read_tasks
from coa.worlds.folder import check_world


@dataclass(frozen=True)
class Checked:
    """What the checks have read, so that nothing is read twice."""

    data: SftData
    eval_tasks: list[Task]
    """Tasks of `eval_tasks`; empty where those of held-out trajectories are used."""
    shape: ModelShape | None
    """None where the model's files do not say."""


def check(config: SftConfig) -> Checked:
    if not config.data:
        raise ConfigError("there is no data to train on", hint="add --data FILE, a folder, or a hub id")
    refuse_untrainable(config.model)
    refuse_absent(config.report_to)
    if config.num_eval_tasks:
        check_scorer(config.scorer)
        check_tools(config.tools)
        check_world(config.world)
    data = load(config)
    if not data.train:
        left = f": {data.defects}" if data.defects else ""
        raise TrainingError(
            f"{', '.join(config.data)} holds no trajectory to train on{left}",
            hint="give trajectories (coa distill, coa run --out) or AFM SFT rows; `coa inspect DATA` shows it",
        )
    return Checked(data, _eval_tasks(config, data), shape_of(config.model))


def _eval_tasks(config: SftConfig, data: SftData) -> list[Task]:
    if not config.num_eval_tasks or config.eval_tasks is None:
        return []
    tasks = list(read_tasks(config.eval_tasks))[: config.num_eval_tasks]
    trained = {asked(t.task) for t in data.train} & {asked(task) for task in tasks}
    if trained:
        raise TrainingError(
            f"{len(trained)} of the tasks to evaluate on are also trained on, e.g. {min(trained)!r}",
            hint="give tasks that the training data does not hold",
        )
    return tasks
