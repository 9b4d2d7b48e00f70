"""metrics.jsonl: one row per update or evaluation, each with its step."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import orjson

from coa.folder import write_atomic


def append(path: Path, step: int, found: Mapping[str, object]) -> None:
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
    write_atomic(path, b"".join(kept))


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
