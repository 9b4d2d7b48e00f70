"""What a run of RL needs besides weights, checked before torch is loaded: settings, reward, tasks, the model's name.

A mistake in any of them is reported at once, not after the half minute that torch and the weights take.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coa.errors import ConfigError, TrainingError
from coa.models.footprint import ModelShape, shape_of
from coa.models.places import refuse_untrainable
from coa.rl.config import RlConfig
from coa.rl.reward import own_reward
from coa.rl.tasks import load_tasks
from coa.scoring.registry import check_scorer
from coa.tools.registry import check_tools
from coa.training.requirements import refuse_absent
from coa.trajectory import Task, load_profile
from coa.worlds.folder import check_world


@dataclass(frozen=True)
class Checked:
    """What the checks have read, so that nothing is read twice."""

    tasks: list[Task]
    held_out: list[Task]
    fingerprint: str
    shape: ModelShape | None
    """None where the model's files do not say."""


def check(config: RlConfig) -> Checked:
    if config.tasks is None:
        raise ConfigError("there are no tasks to learn from", hint="add --tasks FILE")
    refuse_untrainable(config.model)
    refuse_absent(config.report_to)
    _check_reward(config)
    check_tools(config.tools)
    check_world(config.world)
    tasks, held_out, fingerprint = load_tasks(config)
    for name in profiles_of(config, (*tasks, *held_out)):
        config.limits(load_profile(name))
    shape = shape_of(config.model)
    if shape is not None and config.freeze_layers >= shape.layers:
        raise TrainingError(
            f"{config.freeze_layers} layers cannot be frozen: the model has {shape.layers}",
            hint="--set freeze_layers=0",
        )
    return Checked(tasks, held_out, fingerprint, shape)


def profiles_of(config: RlConfig, tasks: Sequence[Task]) -> list[str]:
    """The profiles of these tasks, each once."""
    return list(dict.fromkeys(task.profile or config.profile for task in tasks))


def _check_reward(config: RlConfig) -> None:
    reward = config.reward
    if reward.judge is None and reward.scorer == "judge":
        raise TrainingError("rewards by a judge need a model that judges", hint="--set reward.judge=URL")
    check_scorer(reward.scorer, judged=reward.judge is not None)
    if reward.function is not None:
        own_reward(reward.function)
