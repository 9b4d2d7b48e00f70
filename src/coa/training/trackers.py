"""Trackers that get a run's metrics besides metrics.jsonl; checked before anything is loaded."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Final

from coa.errors import TrainingError

TRACKERS: Final = ("tensorboard", "wandb", "swanlab", "trackio")


def refuse_absent(report_to: Sequence[str]) -> None:
    for name in report_to:
        if name not in TRACKERS:
            raise TrainingError(f"report_to: {name!r} is not known", hint=f"use some of {', '.join(TRACKERS)}")
        if importlib.util.find_spec(name) is None:
            raise TrainingError(
                f"report_to: {name} is not installed", hint=f"pip install {name}, or --set 'report_to=[]'"
            )
