"""The algorithms of `coa rl`, one file each: how rewards become advantages, and how advantages become a loss.

A file has the name under which the settings know it. One that estimates advantages defines `advantages`, one that
computes a loss defines `policy_loss`; the signatures are in `base.py`. To add an algorithm, write its file and add its
name below. The files are imported when they are first used, because settings are read without loading torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

from coa.rl.algorithms.base import AdvantageEstimator, PolicyLoss

ADVANTAGE_ESTIMATORS: Final = ("grpo", "token_baseline")
POLICY_LOSSES: Final = ("ppo_clip", "gspo")


def advantage_estimator(name: str) -> AdvantageEstimator:
    """The function `advantages` of the file with this name."""
    found: AdvantageEstimator = import_module(f"{__name__}.{name}").advantages
    return found


def policy_loss(name: str) -> PolicyLoss:
    """The function `policy_loss` of the file with this name."""
    found: PolicyLoss = import_module(f"{__name__}.{name}").policy_loss
    return found
