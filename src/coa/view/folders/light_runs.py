"""Trajectories without their texts: what the figures about a folder need, read fast and kept while the file stays.

Files of trajectories are appended to, so a file that has grown is read on from where the last reading ended. A line is
parsed as JSON and not validated: that is ten times faster, and a line of another version still counts.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple

import orjson

from coa.evaluate.attempts import Attempt, short_meta
from coa.trajectory import Author, Stop, Usage
from coa.view.folders.files import Row, is_number, mapping, number, text

MOST_BYTES: Final = 256 << 20
"""As much of a file is read; the index knows the rest."""
_MOST_FILES: Final = 2_000
_LONGEST: Final = 300


class LightRun(NamedTuple):
    attempt: Attempt
    number: int
    """Place in the file, from 0."""
    site: str
    """The part that failed; empty if none did."""
    failure: str
    tool_errors: tuple[tuple[str, str], ...]
    """Tool and kind of error of each failed call."""
    reasons: dict[str, str]
    """The reason of each score that has one."""
    rl: Row

    @property
    def family(self) -> str:
        return self.attempt.meta.get("family", "")


@dataclass
class LightRuns:
    """The runs of a file, as far as it has been read."""

    runs: list[LightRun] = field(default_factory=list)
    damaged: int = 0
    offset: int = 0
    records: int = 0
    size: int = 0
    start: bytes = b""
    """The first bytes: a file with others was replaced."""
    modified: int = 0

    @property
    def complete(self) -> bool:
        return self.offset >= self.size or self.offset < MOST_BYTES


_kept: OrderedDict[str, LightRuns] = OrderedDict()
_lock = Lock()


def light_runs(path: Path, scorer: str | None = None) -> LightRuns:
    """The runs in a JSONL file. `scorer` names the score that decides; None takes the only one, or `success`."""
    key = f"{path}\x00{scorer}"
    with _lock:
        found = _kept.pop(key, None) or LightRuns()
        try:
            with path.open("rb") as file:
                found = _read_on(file.fileno(), found, scorer)
        except OSError:
            return LightRuns()
        _kept[key] = found
        while len(_kept) > _MOST_FILES:
            _kept.popitem(last=False)
        return found


def _read_on(fd: int, found: LightRuns, scorer: str | None) -> LightRuns:
    status = os.fstat(fd)
    start = os.pread(fd, 64, 0)
    if status.st_size < found.size or not start.startswith(found.start) or (
        status.st_size == found.size and status.st_mtime_ns != found.modified
    ):  # fmt: skip
        found = LightRuns()
    if status.st_size == found.size and found.start:
        return found
    found.size, found.start, found.modified = status.st_size, start, status.st_mtime_ns
    with os.fdopen(os.dup(fd), "rb") as file:
        file.seek(found.offset)
        for line in file:
            if not line.endswith(b"\n") or found.offset >= MOST_BYTES:
                break
            found.offset += len(line)
            if line.strip():
                _take(found, line, scorer)
    return found


def _take(found: LightRuns, line: bytes, scorer: str | None) -> None:
    run = None
    try:
        row = orjson.loads(line)
        run = light_run(row, found.records, scorer)
    except (orjson.JSONDecodeError, ValueError, TypeError, AttributeError):
        pass
    found.records += 1
    if run is None:
        found.damaged += 1
    else:
        found.runs.append(run)


def light_run(row: object, place: int, scorer: str | None) -> LightRun | None:
    """None if the row is no trajectory."""
    if not isinstance(row, dict) or not isinstance(row.get("task"), dict):
        return None
    task, meta, scores = row["task"], mapping(row.get("meta")), mapping(row.get("scores"))
    steps = [step for step in row.get("steps") or () if isinstance(step, dict)]
    values = {name: number(mapping(score).get("value", score)) for name, score in scores.items()}
    if scorer is None:
        scorer = next(iter(values)) if len(values) == 1 else "success"
    failure = mapping(row.get("failure"))
    attempt = Attempt(
        task=text(task.get("id")) or "?",
        sample=int(number(row.get("sample")) or 0),
        value=values.get(scorer),
        answer=next((text(step.get("text")) for step in reversed(steps) if step.get("agent") == "answer"), None),
        stop=_stop(row.get("stop")),
        usage=_usage(mapping(row.get("usage"))),
        written=_written(steps),
        repairs=sum(len(step.get("repairs") or ()) for step in steps),
        scores=values,
        meta=short_meta(mapping(task.get("meta"))),
        program=task.get("tests") is not None,
        why_unscored=text(mapping(scores.get(scorer)).get("reason")),
    )
    reasons = {name: reason for name, score in scores.items() if (reason := text(mapping(score).get("reason")))}
    site, message = text(failure.get("site")), text(failure.get("message"))[:_LONGEST]
    return LightRun(attempt, place, site, message, _tool_errors(steps), reasons, mapping(meta.get("rl")))


def _stop(value: object) -> Stop:
    try:
        return Stop(str(value)) if value is not None else Stop.ANSWERED
    except ValueError:
        return Stop.INTERRUPTED


def _usage(row: Row) -> Usage:
    known: dict[str, Any] = {
        name: value for name, value in row.items() if name in Usage.model_fields and is_number(value)
    }
    return Usage.model_construct(**known)


def _written(steps: Sequence[Row]) -> dict[str, int]:
    """Tokens of each agent, where they were sampled; else characters would have to stand for them, and none do."""
    found: dict[str, int] = {}
    for step in steps:
        if step.get("author", Author.MODEL) == Author.MODEL and isinstance(tokens := step.get("tokens"), dict):
            agent = text(step.get("agent"))
            found[agent] = found.get(agent, 0) + len(tokens.get("ids") or ())
    return found


def _tool_errors(steps: Sequence[Row]) -> tuple[tuple[str, str], ...]:
    found, caller = [], ""
    for step in steps:
        if step.get("author") == Author.ENVIRONMENT:
            meta = mapping(step.get("meta"))
            if meta.get("ok") is False:
                found.append((caller, _kind(meta)))
        else:
            caller = text(step.get("agent"))
    return tuple(found)


def _kind(meta: Row) -> str:
    verdict = text(meta.get("verdict"))
    return text(meta.get("error")) or (verdict if verdict and verdict != "OK" else "") or "error"
