"""The folder of a training run: it belongs to one run, with its settings, data and seed, and holds metrics.jsonl."""

from __future__ import annotations

import platform
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import orjson
from pydantic import ValidationError

from coa import folder
from coa.config import with_new_names
from coa.errors import FolderError
from coa.trajectory.types import Frozen
from coa.version import __version__

METRICS: Final = "metrics.jsonl"
MODEL: Final = "model"


@dataclass(frozen=True)
class TrainingResult:
    """Result of `sft` or `rl`."""

    folder: Path
    """The model's folder if the run is finished, else the run folder."""
    steps: int
    finished: bool
    figures: Mapping[str, str]
    main: bool = True
    """Whether this is the process that reports for all of them."""


def claim(
    out: Path, stage: str, config: Frozen, fingerprint: str, *, free: Collection[str], write: bool = True
) -> None:
    """Claim the folder for this run, or refuse if it belongs to another one.

    `free` are the settings that may change between two starts of a run: they do not change what is trained. A setting
    that is newer than the run has its default.
    """
    settings = config.model_dump(mode="json")
    versions = {name: version(name) for name in ("torch", "transformers", "accelerate")}
    record = {
        "config": settings,
        "data_fingerprint": fingerprint,
        "seed": settings["seed"],
        "versions": {"coa": __version__, "python": platform.python_version(), **versions},
    }
    before = folder.claim(
        out, stage, record, settings="config", free=free, foreign="*", correctable=True, write=write,
        compared=lambda saved: _in_todays_names(type(config), saved),
    )  # fmt: skip
    if before is not None and before.get("data_fingerprint") != fingerprint:
        hint = "choose another folder with --out"
        raise FolderError(f"the data has changed since the run in {out} was started", hint=hint)


def _in_todays_names(kind: type[Frozen], saved: dict[str, Any]) -> dict[str, Any]:
    """Saved settings as this version would save them: under new names, with the defaults of settings that are newer."""
    renamed = with_new_names(kind, saved, warn=False)
    try:
        return kind.model_validate(renamed).model_dump(mode="json")
    except ValidationError:  # a setting that is gone, or a value that is no longer allowed
        return kind().model_dump(mode="json") | renamed


def append(path: Path, step: int, found: Mapping[str, object]) -> None:
    """Add a row to metrics.jsonl, which has one for each update or evaluation, with its step."""
    row = {"step": step, **found, "time": round(time.time(), 3)}
    with path.open("ab") as file:
        file.write(orjson.dumps(row) + b"\n")


def keep_until(path: Path, step: int) -> None:
    """Remove rows of later steps and a torn last row, which a killed run wrote after its last checkpoint."""
    if not path.is_file():
        return
    kept = []
    for line in path.read_bytes().splitlines():
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if row["step"] <= step and (step or row["step"]):
            kept.append(line + b"\n")
    folder.write_atomic(path, b"".join(kept))


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def figures(path: Path, formats: Mapping[str, str], *, at: str, rate: tuple[str, str]) -> dict[str, str]:
    """The first and the last value of some metrics, and the median of a rate; for the model card.

    `rate` is the name of the metric and what the card calls it.
    """
    rows = [orjson.loads(line) for line in path.read_bytes().splitlines()] if path.is_file() else []
    found = {}
    for name, shown in formats.items():
        # If the surplus made sampling needless, the numbers are of groups that were chosen for their differences.
        values = [(row["step"], row[name]) for row in rows if name in row and row.get("groups_drawn", 1)]
        if values:
            (first, one), (last, other) = values[0], values[-1]
            found[name.replace("_", "-")] = f"{one:{shown}} {at} {first}, {other:{shown}} {at} {last}"
    if rates := sorted(row[rate[0]] for row in rows if rate[0] in row):
        found[f"{rate[1]} (median)"] = f"{rates[len(rates) // 2]:.0f}"
    return found
