"""Rows that are our own records, recognised by their fields alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import orjson

from coa.errors import StoreError
from coa.trajectory.store.jsonl import read_lines
from coa.trajectory.types import Trajectory

_FIELDS: Final = frozenset({*Trajectory.model_fields, "profile_definition"})


def is_trajectory(value: object) -> bool:
    """A run that broke before its first step is written without `steps`, and is a trajectory too."""
    if not isinstance(value, Mapping):
        return False
    return "task" in value and "profile" in value and ("steps" in value or "schema_version" in value)


def is_plainly_own(value: object) -> bool:
    """Whether all fields are those of our own records. Every other format has a field that they lack, so a large file
    of trajectories need not be compared with each format, row by row."""
    return type(value) is dict and value.keys() <= _FIELDS and is_trajectory(value)


def begins_plainly_own(path: Path) -> bool:
    """Whether the first line of a .jsonl file is a record of our own. Then nothing that reads other formats need be
    imported, which takes longer than showing a few runs."""
    if path.suffix != ".jsonl":
        return False
    try:
        line = next(read_lines(path, lambda _: None), None)
        return line is not None and is_plainly_own(orjson.loads(line[1]))
    except (StoreError, OSError, orjson.JSONDecodeError):
        return False  # whoever reads the file says what is wrong with it
