"""Answers of the viewer as JSON. They may hold anything that trajectories and names of files hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import orjson

_OPTIONS: Final = orjson.OPT_NON_STR_KEYS


def as_json(value: object) -> bytes:
    try:
        return orjson.dumps(value, option=_OPTIONS, default=_plain)
    except TypeError:
        # Names of files need not be UTF-8; Python keeps such bytes as halves of surrogate pairs.
        return orjson.dumps(_valid(value), option=_OPTIONS, default=_plain)


def _plain(value: object) -> object:
    """Frozen mappings of trajectories, which orjson takes only as plain dicts."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is no JSON")


def _valid(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        return {_valid(key): _valid(item) for key, item in value.items()}
    return [_valid(item) for item in value] if isinstance(value, list | tuple) else value
