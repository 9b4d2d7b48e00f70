"""`coa export`: trajectories and tasks in the shapes of other programs, or foreign rows in ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from coa.trajectory import Profile, Trajectory


class Target(StrEnum):
    TRAJECTORIES = "trajectories"
    TASKS = "tasks"
    MESSAGES = "messages"
    ALPACA = "alpaca"
    SHAREGPT = "sharegpt"
    VERL = "verl"
    ATIF = "atif"


def export(
    data: Annotated[
        str, typer.Argument(help="Trajectories, AFM SFT rows, or (for tasks) task rows: a file, a folder, or a hub id.")
    ],
    to: Annotated[Target, typer.Option(help="The shape to write; `trajectories` and `tasks` are coa's own.")],
    out: Annotated[
        Path | None,
        typer.Option(
            help=".jsonl, .json or .parquet; for atif also a folder, a file each. Without it: JSONL to stdout."
        ),
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="Read with this profile (a name or a .toml), whatever the data carry.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
) -> None:
    """Write trajectories for other trainers and tools, or read foreign rows into coa's own files."""
    from coa.cli.terminal import show_warnings
    from coa.errors import StoreError

    show_warnings()
    if out is not None and out.exists() and not force:
        raise StoreError(f"{out} exists already", hint="add --force to replace it, or choose another --out")
    folder = out is not None and not out.suffix and to is Target.ATIF
    endings = [".jsonl", ".json"] if to is Target.ATIF else [".jsonl", ".json", ".parquet"]
    if out is not None and not folder and out.suffix not in endings:
        raise StoreError(f"{to} is not written to {out.name!r}", hint=f"end --out in {' or '.join(endings)}")
    rows = _rows(data, to, profile)
    if out is None:
        for line in _lines(rows):
            typer.echo(line)
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    count = _write_folder(rows, out) if folder else _write(rows, out, to)
    typer.echo(f"{count} {'tasks' if to is Target.TASKS else 'trajectories'} written to {out}", err=True)


def _rows(data: str, to: Target, profile: str | None) -> Iterator[Any]:
    if to is Target.TASKS:
        yield from _task_rows(data, profile)
        return
    from coa.trajectory import load_profile, profile_of, with_profile
    from coa.trajectory.formats.detect import trajectories_of

    convert = _converter(to)
    chosen = load_profile(profile) if profile else None
    for trajectory in trajectories_of(data, chosen):
        if chosen is not None:
            trajectory = with_profile(trajectory, chosen)
        yield convert(trajectory, profile_of(trajectory))


def _task_rows(data: str, profile: str | None) -> Iterator[dict[str, Any]]:
    from coa.trajectory import load_profile
    from coa.trajectory.formats.detect import holds_tasks, trajectories_of
    from coa.trajectory.formats.tasks import from_task, read_tasks

    if holds_tasks(data):
        yield from map(from_task, read_tasks(data))
        return
    seen: set[tuple[str, str]] = set()
    for trajectory in trajectories_of(data, load_profile(profile) if profile else None):
        # Ids such as "1" occur in every set; data distilled from two of them holds two tasks of that id.
        key = (trajectory.task.id, trajectory.task.question)
        if key not in seen:
            seen.add(key)
            yield from_task(trajectory.task)


def _converter(to: Target) -> Callable[[Trajectory, Profile], Any]:
    from coa.trajectory.formats.alpaca import to_alpaca
    from coa.trajectory.formats.atif_export import to_atif
    from coa.trajectory.formats.messages import to_messages, to_sharegpt
    from coa.trajectory.formats.verl import to_verl

    converters: dict[Target, Callable[[Trajectory, Profile], Any]] = {
        Target.TRAJECTORIES: lambda trajectory, profile: trajectory,
        Target.ALPACA: to_alpaca,
        Target.ATIF: to_atif,
        Target.MESSAGES: to_messages,
        Target.SHAREGPT: to_sharegpt,
        Target.VERL: to_verl,
    }
    return converters[to]


def _write(rows: Iterable[Any], out: Path, to: Target) -> int:
    """Write beside the target and put it in place at the end, so that an interrupted export leaves nothing half."""
    from coa.folder import lock_file, replacing
    from coa.trajectory import Trajectory, writer
    from coa.trajectory.formats.rows import write_rows

    with lock_file(out), replacing(out) as part:
        if to is Target.TRAJECTORIES and out.suffix != ".json":
            count = 0
            with writer(part) as file:
                for row in rows:
                    assert isinstance(row, Trajectory)
                    file.write(row)
                    count += 1
        else:
            count = write_rows(part, _lines(rows))
    return count


def _write_folder(rows: Iterable[dict[str, Any]], out: Path) -> int:
    import re

    import orjson

    from coa.folder import lock, write_atomic

    count = 0
    with lock(out):
        for stale in out.glob("[0-9]" * 6 + "-*.json"):
            stale.unlink()
        for count, row in enumerate(rows, start=1):
            name = re.sub(r"[^A-Za-z0-9_.-]+", "_", row["session_id"])[:80]
            write_atomic(out / f"{count:06d}-{name}.json", orjson.dumps(row))
    return count


def _lines(rows: Iterable[Any]) -> Iterator[bytes]:
    import orjson

    from coa.trajectory import Trajectory
    from coa.trajectory.store import Lines

    lines = Lines()
    for row in rows:
        yield lines.line(row) if isinstance(row, Trajectory) else orjson.dumps(row)
