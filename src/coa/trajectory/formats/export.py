"""Writes trajectories and tasks in the formats of other programs, and rows of other programs in our own formats."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from coa.choices import Target
from coa.errors import StoreError
from coa.folder import lock, lock_file, replacing, write_atomic
from coa.trajectory.formats.alpaca import to_alpaca
from coa.trajectory.formats.atif_export import to_atif
from coa.trajectory.formats.detect import holds_tasks, trajectories_of
from coa.trajectory.formats.messages import to_messages, to_sharegpt, to_verl
from coa.trajectory.formats.rows import write_rows
from coa.trajectory.formats.tasks import from_task, read_tasks
from coa.trajectory.profile import Profile, load_profile, profile_of, with_profile
from coa.trajectory.store import Lines, write
from coa.trajectory.types import Task, Trajectory

_CONVERTERS: Final[Mapping[Target, Callable[[Trajectory, Profile], dict[str, Any]]]] = {
    Target.ALPACA: to_alpaca,
    Target.ATIF: to_atif,
    Target.MESSAGES: to_messages,
    Target.SHAREGPT: to_sharegpt,
    Target.VERL: to_verl,
}


def export(data: str, to: Target, out: str | Path, *, profile: str | Path | None = None, force: bool = False) -> int:
    """Write the trajectories or tasks of `data` to the file `out`, and return their number.

    `data` is a file, a folder or a hub id. ATIF may also be written to a folder, with one file per trajectory. With
    `profile`, everything is read with that profile, whatever profile the data carry. An interrupted export leaves `out`
    as it was, because the file takes its place only when it is complete.
    """
    out = Path(out)
    if out.exists() and not force:
        raise StoreError(f"{out} exists already", hint="add --force to replace it, or choose another --out")
    if to is Target.ATIF and not out.suffix:
        return _write_folder(data, out, profile)
    endings = [".jsonl", ".json"] if to is Target.ATIF else [".jsonl", ".json", ".parquet"]
    if out.suffix not in endings:
        raise StoreError(f"{to} cannot be written to {out.name!r}", hint=f"end --out in {' or '.join(endings)}")
    with lock_file(out), replacing(out) as part:
        if to is Target.TRAJECTORIES and out.suffix != ".json":
            return write(part, _trajectories(data, profile))
        return write_rows(part, exported_lines(data, to, profile=profile))


def exported_lines(data: str, to: Target, *, profile: str | Path | None = None) -> Iterator[bytes]:
    """What `export` would write, as lines of JSON without line breaks."""
    if to is Target.TRAJECTORIES:
        return map(Lines().line, _trajectories(data, profile))
    return map(orjson.dumps, _rows(data, to, profile))


def _rows(data: str, to: Target, profile: str | Path | None) -> Iterator[dict[str, Any]]:
    if to is Target.TASKS:
        return map(from_task, read_tasks(data) if holds_tasks(data) else _tasks(_trajectories(data, profile)))
    return (_CONVERTERS[to](trajectory, profile_of(trajectory)) for trajectory in _trajectories(data, profile))


def _trajectories(data: str, profile: str | Path | None) -> Iterator[Trajectory]:
    chosen = load_profile(profile) if profile else None
    for trajectory in trajectories_of(data, chosen):
        yield trajectory if chosen is None else with_profile(trajectory, chosen)


def _tasks(trajectories: Iterator[Trajectory]) -> Iterator[Task]:
    """Each task once. Ids such as "1" occur in every data set, so the question distinguishes two tasks with one id."""
    seen: set[tuple[str, str]] = set()
    for task in (trajectory.task for trajectory in trajectories):
        if (task.id, task.question_in_context) not in seen:
            seen.add((task.id, task.question_in_context))
            yield task


def _write_folder(data: str, out: Path, profile: str | Path | None) -> int:
    """One ATIF document per file."""
    count = 0
    with lock(out):
        for stale in out.glob("[0-9]" * 6 + "-*.json"):
            stale.unlink()
        for count, row in enumerate(_rows(data, Target.ATIF, profile), start=1):
            name = re.sub(r"[^A-Za-z0-9_.-]+", "_", row["session_id"])[:80]
            write_atomic(out / f"{count:06d}-{name}.json", orjson.dumps(row))
    return count
