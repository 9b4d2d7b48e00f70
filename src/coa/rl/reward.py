"""The reward of an attempt: the scorer's number if the run is well-formed, plus small terms with weights.

An attempt that could not be scored has no reward, which is not the same as zero: it leaves its group.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from typing import Final

from coa.errors import CoaError, TrainingError
from coa.importing import import_function
from coa.rl import config as settings
from coa.scoring import Scorer, score_trajectory
from coa.trajectory import Profile, Trajectory, check, load_profile

log = logging.getLogger(__name__)
SUCCESS: Final = "success"
COUNTED: Final = "counted"
"""The part of the task's score that counts: 0 in a run that breaks the rules, where keeping them is a condition."""
REWARD: Final = "reward"

Own = Callable[[Trajectory, float | None], float | Awaitable[float | None] | None]
"""A user's reward function, of the trajectory and its score."""


def is_well_formed(trajectory: Trajectory, profile: Profile) -> bool:
    """Whether the run keeps all rules of the profile and nothing in it had to be repaired by the parser."""
    return not trajectory.repairs and not check(trajectory.steps, profile)


@dataclass(frozen=True)
class Rewards:
    """Computes the reward of each attempt."""

    setting: settings.Reward
    scorer: Scorer
    own: Own | None = None

    async def of(self, trajectory: Trajectory, profile: Profile) -> Trajectory:
        """A copy with the scores `success`, `counted` and `reward`."""
        scored = await score_trajectory(trajectory, self.scorer, name=SUCCESS)
        success = scored.scores[SUCCESS]
        if self.own is not None:
            value, reason = await _asked(self.own, scored, success.value)
            return scored.scored(COUNTED, value, reason).scored(REWARD, value, reason)
        if success.value is None:
            return scored.scored(COUNTED, None, success.reason).scored(REWARD, None, success.reason)
        formed = is_well_formed(scored, profile)
        counted = success.value * (formed or not self.setting.require_format)
        reward = (
            counted
            + self.setting.format_weight * formed
            + self.setting.tool_call_weight * scored.usage.tool_calls
        )  # fmt: skip
        why = "" if formed else "not well-formed"
        return scored.scored(COUNTED, counted, why).scored(REWARD, reward, why)


def own_reward(path: str) -> Own:
    found = import_function(path, what="the reward", error=TrainingError)
    try:
        inspect.signature(found).bind(None, None)
    except TypeError as error:
        hint = "it is called as function(trajectory, score)"
        raise TrainingError(f"the reward {path!r} cannot be called: {error}", hint=hint) from error
    except ValueError:  # a function of a C library, which does not say what it takes
        pass
    return found


async def _asked(own: Own, trajectory: Trajectory, success: float | None) -> tuple[float | None, str]:
    try:
        found = own(trajectory, success)
        value = await found if inspect.isawaitable(found) else found
        if value is None:
            return None, "the reward function gave none"
        if not math.isfinite(number := float(value)):
            return None, f"the reward function gave {number}"
        return number, ""
    except CoaError:
        raise
    except Exception as error:  # the border to code of any origin
        log.warning("no reward for task %s: %s: %s", trajectory.task.id, type(error).__name__, error)
        return None, f"the reward function failed: {type(error).__name__}: {error}"[:300]


def shaped_reward(trajectory: Trajectory, model_tokens: int, config: settings.RlConfig) -> float:
    """The reward of a scored attempt, after overlong shaping."""
    given = trajectory.scores[REWARD].value
    assert given is not None, trajectory.key
    limits = config.limits(cached_profile(trajectory.task.profile or config.profile))
    return given + overlong_penalty(
        model_tokens,
        limit=limits.model_tokens,
        buffer=config.overlong_buffer_ratio,
        most=config.overlong_penalty_factor,
    )


@cache
def cached_profile(name: str) -> Profile:
    return load_profile(name)


def overlong_penalty(model_tokens: int, *, limit: int, buffer: float, most: float) -> float:
    """Soft overlong shaping, as in DAPO: the number to add to the reward.

    It is 0 up to `limit - buffer * limit` tokens, then falls linearly to `-most` at `limit`. Only tokens that the model
    wrote count: a long page that a tool returned is not the model's fault.
    """
    stretch = buffer * limit
    if stretch <= 0:
        return 0.0
    over = model_tokens - (limit - stretch)
    return -most * min(max(over / stretch, 0.0), 1.0)
