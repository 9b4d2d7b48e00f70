"""A run folder belongs to one run, with its settings, data and seed."""

from __future__ import annotations

import platform
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import orjson
from pydantic import ValidationError

from coa.config import with_new_names
from coa.errors import TrainingError
from coa.trajectory.types import Frozen

CONFIG: Final = "config.json"
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

    `free` are the settings that may change between two starts of a run: they do not change what is trained.
    `coa` is its version.
    """
    record = {
        "stage": stage,
        "config": config.model_dump(mode="json"),
        "data_fingerprint": fingerprint,
        "seed": seed,
        "versions": {
            "coa": coa,
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "transformers", "accelerate")},
        },
    }
    path = out / CONFIG
    if path.is_file() and not _untouched(out, stage):
        _refuse_other_run(out, _saved(path), record, type(config), free)
        return
    if not path.is_file() and out.is_dir() and any(out.iterdir()):
        raise TrainingError(
            f"{out} is not empty and holds no {CONFIG} of a training run", hint="choose another folder with --out"
        )
    if write:
        out.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_bytes(orjson.dumps(record, option=orjson.OPT_INDENT_2))
        part.rename(path)


def _saved(path: Path) -> dict[str, Any]:
    try:
        found = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError:
        found = None
    return found if isinstance(found, dict) else {}


def _untouched(out: Path, stage: str) -> bool:
    """A run that was refused before its first update left its settings and nothing else; they may be corrected."""
    return _saved(out / CONFIG).get("stage") == stage and {path.name for path in out.iterdir()} <= {CONFIG}


def _refuse_other_run(
    out: Path, before: dict[str, Any], now: dict[str, Any], kind: type[Frozen], free: Collection[str]
) -> None:
    if before.get("stage") != now["stage"] or not isinstance(before.get("config"), dict):
        raise TrainingError(f"{out} is the folder of another kind of run", hint="choose another folder with --out")
    old, new = _in_todays_names(kind, before["config"]), now["config"]
    different = sorted(key for key in {*old, *new} if old.get(key) != new.get(key) and key not in free)
    if different:
        key = different[0]
        raise TrainingError(
            f"{out} is a run with other settings: {key} was {old.get(key)!r} and is now {new.get(key)!r}"
            + (f" (also: {', '.join(different[1:])})" if different[1:] else ""),
            hint="give the settings it was started with, or another folder with --out",
        )
    if before.get("data_fingerprint") != now["data_fingerprint"]:
        raise TrainingError(
            f"the data has changed since the run in {out} was started", hint="choose another folder with --out"
        )


def _in_todays_names(kind: type[Frozen], saved: dict[str, Any]) -> dict[str, Any]:
    """Saved settings as this version would save them: under new names, with the defaults of settings that are newer."""
    renamed = with_new_names(kind, saved, warn=False)
    try:
        return kind.model_validate(renamed).model_dump(mode="json")
    except ValidationError:  # a setting that is gone, or a value that is no longer allowed
        return kind().model_dump(mode="json") | renamed
