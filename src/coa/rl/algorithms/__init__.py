"""The algorithms of `coa rl`, one file each: how rewards become advantages, and how advantages become a loss.

A file has the name under which the settings know it. One that estimates advantages defines `advantages`, one that
computes a loss defines `policy_loss`; the signatures are in `base.py`. To add an algorithm, write its file and add its
name to `advantage_estimator` or `policy_loss` in `rl/config.py`.
"""

from __future__ import annotations

from importlib import import_module

from coa.rl.algorithms.base import AdvantageEstimator, PolicyLoss


def advantage_estimator(name: str) -> AdvantageEstimator:
    """The function `advantages` of the file with this name."""
    found: AdvantageEstimator = import_module(f"{__name__}.{name}").advantages
    return found


def policy_loss(name: str) -> PolicyLoss:
    """The function `policy_loss` of the file with this name."""
    found: PolicyLoss = import_module(f"{__name__}.{name}").policy_loss
    return found
