"""A run folder belongs to one run, with its settings, data and seed."""

from __future__ import annotations

import platform
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from coa import folder
from coa.config import with_new_names
from coa.errors import FolderError
from coa.trajectory.types import Frozen

METRICS: Final = "metrics.jsonl"
MODEL: Final = "model"


@dataclass(frozen=True)
class TrainingResult:
    """The result of a training run."""

    folder: Path
    """The model's folder if the run is finished, else the run folder."""
    steps: int
    finished: bool
    figures: Mapping[str, str]
    main: bool = True
    """Whether this is the process that reports for all of them."""


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
        compared=lambda saved: _in_todays_names(type(config), saved),
        foreign="*",
        correctable=True,
        write=write,
    )
    if before is not None and before.get("data_fingerprint") != fingerprint:
        raise FolderError(
            f"the data has changed since the run in {out} was started", hint="choose another folder with --out"
        )


def _in_todays_names(kind: type[Frozen], saved: dict[str, Any]) -> dict[str, Any]:
    """Saved settings as this version would save them: under new names, with the defaults of settings that are newer."""
    renamed = with_new_names(kind, saved, warn=False)
    try:
        return kind.model_validate(renamed).model_dump(mode="json")
    except ValidationError:  # a setting that is gone, or a value that is no longer allowed
        return kind().model_dump(mode="json") | renamed
