"""A run's folder belongs to one run: its settings, its data, its seed."""

from __future__ import annotations

import platform
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

from coa import folder
from coa.errors import FolderError
from coa.trajectory.types import Frozen

METRICS: Final = "metrics.jsonl"
MODEL: Final = "model"


@dataclass(frozen=True)
class Result:
    """What a run came to."""

    folder: Path
    """The model, once it is finished; else the run."""
    steps: int
    finished: bool
    figures: Mapping[str, str]
    main: bool = True
    """Whether this is the process that speaks for all of them."""


def claim(
    out: Path,
    stage: str,
    config: Frozen,
    fingerprint: str,
    *,
    free: Collection[str],
    seed: int,
    coa: str,
    write: bool = True,
) -> None:
    """Make the folder this run's, or refuse if it is another's.

    `free` are the settings that may change between two starts of a run: they do not change what is trained. A setting
    that is newer than the run has its default. `coa` is its version.
    """
    record = {
        "config": config.model_dump(mode="json"),
        "data_fingerprint": fingerprint,
        "seed": seed,
        "versions": {
            "coa": coa,
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "transformers", "accelerate")},
        },
    }
    before = folder.claim(
        out,
        stage,
        record,
        settings="config",
        free=free,
        defaults=type(config)().model_dump(mode="json"),
        foreign="*",
        correctable=True,
        write=write,
    )
    if before is not None and before.get("data_fingerprint") != fingerprint:
        raise FolderError(
            f"the data has changed since the run in {out} was started", hint="choose another folder with --out"
        )
