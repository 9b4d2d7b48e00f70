"""What training needs: torch, trackers of metrics, a tokenizer that ends turns. Checked before weights are loaded."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from coa.errors import TrainingError
from coa.models.tokenizer import TextTokenizer

TRACKERS: Final = ("tensorboard", "wandb", "swanlab", "trackio")
"""Trackers that may get the metrics of a run besides metrics.jsonl."""


@contextmanager
def loading_torch() -> Iterator[None]:
    """Around the import of what trains: settings that torch reads on import, and a clear error where it is missing."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # waiting threads must not spin
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        yield
    except ImportError as error:
        raise TrainingError(f"training needs torch, transformers and peft ({error})", needs=["train"]) from error


def reports_for_all() -> bool:
    """Whether this process is the one that reports, where several train together."""
    return os.environ.get("RANK", "0") == "0"


def refuse_absent(report_to: Sequence[str]) -> None:
    for name in report_to:
        if name not in TRACKERS:
            raise TrainingError(f"report_to: {name!r} is not known", hint=f"use some of {', '.join(TRACKERS)}")
        if importlib.util.find_spec(name) is None:
            if name == "tensorboard":
                raise TrainingError(f"report_to: {name} is not installed", needs=["train"])
            raise TrainingError(
                f"report_to: {name} is not installed", hint=f"pip install {name}, or --set 'report_to=[]'"
            )


def refuse_endless(tokenizer: TextTokenizer) -> None:
    if tokenizer.end_of_turn is None:
        raise TrainingError(
            "the model's tokenizer names no token that ends a turn (eos_token), so it could not learn when to stop",
            hint='add "eos_token" to tokenizer_config.json in the model folder',
        )
