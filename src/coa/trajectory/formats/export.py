"""Writes trajectories and tasks in the formats of other programs, and rows of other programs in our own formats."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

import orjson
from pydantic import ValidationError

from coa.blocking import run_blocking
from coa.choices import Target
from coa.config import first_problem
from coa.errors import StoreError
from coa.folder import lock, lock_file, replacing, write_atomic
from coa.trajectory.formats.alpaca import to_alpaca
from coa.trajectory.formats.atif_export import to_atif
from coa.trajectory.formats.detect import holds_tasks, read_trajectories, trajectories_of
from coa.trajectory.formats.messages import to_messages, to_sharegpt, to_verl
from coa.trajectory.formats.otlp_endpoint import OtlpConfig, OtlpEndpoint, OtlpUnserved, in_batches, is_endpoint
from coa.trajectory.formats.otlp_export import to_spans
from coa.trajectory.formats.otlp_wire import Span, resource_spans
from coa.trajectory.formats.rows import write_joined, write_rows
from coa.trajectory.formats.sources import files, not_empty
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


def export(
    data: str | Sequence[str],
    to: Target,
    out: str | Path,
    *,
    profile: str | Path | None = None,
    force: bool = False,
    content: bool | None = None,
) -> int:
    """Write the trajectories or tasks of `data` to the file `out`, and return their number.

    `data` is a file, a folder or a hub id, or several of them, which are joined. ATIF may also be written to a folder,
    with one file per trajectory. With `profile`, everything is read with that profile, whatever profile the data carry.
    An interrupted export leaves `out` as it was, because the file takes its place only when it is complete.

    OTLP may also be sent to an endpoint, whose address `out` is then. `content` says whether spans include the texts of
    users, model and tools; None means in a file, but not for an endpoint.
    """
    if to is Target.MODEL:
        raise StoreError("checkpoints are not records", hint="coa.merge_checkpoint(folder, out) merges them")
    data = _sources(data)
    if content is not None and to is not Target.OTLP:
        raise StoreError(f"`content` has no meaning for {to}", hint="it is for spans: --to otlp")
    if is_endpoint(out):
        if to is not Target.OTLP:
            raise StoreError(f"{to} cannot be sent to an address", hint="use --to otlp, or give --out a file")
        return run_blocking(_send(data, str(out), profile, content=bool(content)))
    out = Path(out)
    if out.exists() and not force:
        raise StoreError(f"{out} exists already", hint="add --force to replace it, or choose another --out")
    if to is Target.ATIF and not out.suffix:
        return _write_folder(data, out, profile)
    endings = [".jsonl", ".json"] if to in (Target.ATIF, Target.OTLP) else [".jsonl", ".json", ".parquet"]
    if out.suffix not in endings:
        raise StoreError(f"{to} cannot be written to {out.name!r}", hint=f"end --out in {' or '.join(endings)}")
    with lock_file(out), replacing(out) as part:
        if to is Target.TRAJECTORIES and out.suffix != ".json":
            return write(part, _trajectories(data, profile))
        if to is Target.OTLP and out.suffix == ".json":  # a single request, as servers take it
            found = _resource_spans(data, profile, content=content is not False)
            return write_joined(part, found, b'{"resourceSpans":[\n', b",\n", b"\n]}\n")
        return write_rows(part, exported_lines(data, to, profile=profile, content=content))


def exported_lines(
    data: str | Sequence[str], to: Target, *, profile: str | Path | None = None, content: bool | None = None
) -> Iterator[bytes]:
    """What `export` would write, as lines of JSON without line breaks."""
    data = _sources(data)
    if to is Target.TRAJECTORIES:
        return map(Lines().line, _trajectories(data, profile))
    if to is Target.OTLP:
        found = _resource_spans(data, profile, content=content is not False)
        return (b'{"resourceSpans":[' + line + b"]}" for line in found)
    return map(orjson.dumps, _rows(data, to, profile))


def _sources(data: str | Sequence[str]) -> Sequence[str]:
    return [data] if isinstance(data, str) else not_empty(data)


def _rows(data: Sequence[str], to: Target, profile: str | Path | None) -> Iterator[dict[str, Any]]:
    if to is Target.TASKS:
        return map(from_task, chain.from_iterable(_tasks_in(source, profile) for source in data))
    return (_CONVERTERS[to](trajectory, profile_of(trajectory)) for trajectory in _trajectories(data, profile))


def _tasks_in(source: str, profile: str | Path | None) -> Iterator[Task]:
    return read_tasks(source) if holds_tasks(source) else _tasks(_trajectories([source], profile))


def _trajectories(data: Sequence[str], profile: str | Path | None) -> Iterator[Trajectory]:
    chosen = load_profile(profile) if profile else None
    for trajectory in chain.from_iterable(trajectories_of(source, chosen) for source in data):
        yield trajectory if chosen is None else with_profile(trajectory, chosen)


def _resource_spans(data: Sequence[str], profile: str | Path | None, *, content: bool) -> Iterator[bytes]:
    service = OtlpConfig().service_name
    return (orjson.dumps(resource_spans(spans, service)) for spans in _spans(data, profile, content=content))


def _spans(data: Sequence[str], profile: str | Path | None, *, content: bool) -> Iterator[list[Span]]:
    """The spans of each run. The time at which a file was written last is taken for the end of its runs, and a
    millisecond is added for each, so that they are listed in the order of the file."""
    chosen = load_profile(profile) if profile else None
    for file in chain.from_iterable(map(files, data)):
        written = file.stat().st_mtime_ns if file.is_file() else time.time_ns()
        for number, trajectory in enumerate(read_trajectories(file, chosen)):
            run = trajectory if chosen is None else with_profile(trajectory, chosen)
            yield to_spans(run, profile_of(run), ended_ns=written + number * 1_000_000, content=content)


async def _send(data: Sequence[str], address: str, profile: str | Path | None, *, content: bool) -> int:
    try:
        endpoint = OtlpEndpoint(OtlpConfig(endpoint=address))
    except ValidationError as error:
        raise StoreError(first_problem(error, OtlpConfig)) from error
    sent = 0
    try:
        for batch in in_batches(_spans(data, profile, content=content)):
            await endpoint.send(endpoint.packed(batch))
            sent += sum(span.parent is None for span in batch)
    except OtlpUnserved as error:
        before = f"; {sent} runs were sent before that, and sending them again does not double them" if sent else ""
        raise OtlpUnserved(error.message + before, hint=error.hint, error=error.error, status=error.status) from error
    finally:
        await endpoint.close()
    return sent


def _tasks(trajectories: Iterator[Trajectory]) -> Iterator[Task]:
    """Each task once. Ids such as "1" occur in every data set, so the question distinguishes two tasks with one id."""
    seen: set[tuple[str, str]] = set()
    for task in (trajectory.task for trajectory in trajectories):
        if (task.id, task.question_in_context) not in seen:
            seen.add((task.id, task.question_in_context))
            yield task


def _write_folder(data: Sequence[str], out: Path, profile: str | Path | None) -> int:
    """One ATIF document per file."""
    count = 0
    with lock(out):
        for stale in out.glob("[0-9]" * 6 + "-*.json"):
            stale.unlink()
        for count, row in enumerate(_rows(data, Target.ATIF, profile), start=1):
            name = re.sub(r"[^A-Za-z0-9_.-]+", "_", row["session_id"])[:80]
            write_atomic(out / f"{count:06d}-{name}.json", orjson.dumps(row))
    return count
