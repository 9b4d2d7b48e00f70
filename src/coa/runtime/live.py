"""A live feed of running chains, for whoever watches a folder from another process.

A run is written to its file when it is over. Until then, everything known of it is in the memory of the process that
makes it. So that a viewer can show a run step by step, the process also appends each finished step of each running
chain to a small hidden file, `.live/<pid>-<random>.jsonl` in the output folder:

    {"profile":HASH,"definition":TEXT}                        once for each profile
    {"run":KEY,"task":{...},"profile":NAME,"profile_hash":HASH,"sample":0,"began":SECONDS,"model":NAME}
    {"run":KEY,"step":{...},"usage":{...},"at":SECONDS}       a step as in a trajectory, without token ids
    {"run":KEY,"ended":true}                                  the run is in its file now

The feed is for looking only: nothing resumes from it, so it is never flushed to the disk, and losing it loses nothing.
It is emptied when no run is active, and rewritten without the ended runs when it has grown. The writer holds it with a
`flock` (`coa.folder.HeldFile`), so a reader sees when its writer was killed, and the next writer removes it. What the
operating system refuses to write switches the feed off and never disturbs a run.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson
from pydantic import ValidationError

from coa.folder import HeldFile, is_held, sweep_unheld
from coa.trajectory import Message, Profile, Step, Stop, Task, Trajectory, Usage
from coa.trajectory.definitions import definition, remember
from coa.trajectory.shorten import shorten
from coa.trajectory.types import EMPTY

log = logging.getLogger(__name__)
FOLDER: Final = ".live"
RUNNING: Final = "running"
"""Key in the meta of `live_trajectory`: the run is not over, whatever its `stop` says."""
_LONGEST_TEXT: Final = 20_000
_LONGEST_LINE: Final = 200_000
"""Bytes of a line above which it is written without what is not needed to read it."""
_MOST_BYTES: Final = 4 << 20
"""Size from which the feed is rewritten; after that, twice the size that it had then if that is more."""
_ENOUGH_BYTES: Final = 64 << 10
"""The same where no run is active, so that nothing but profiles is left."""


# ---- writing


class LiveFeed:
    """The feed of one process in one folder. Its file is made when the first run begins."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER
        self._file: HeldFile | None = None
        self._off = False
        self._active: set[str] = set()
        self._defined: dict[str, bytes] = {}
        self._rewrite_at = _MOST_BYTES
        self._name = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._begun = 0

    def begin(
        self,
        task: Task,
        profile: Profile,
        sample: int,
        *,
        model: str,
        prompt: Sequence[Message] | None = None,
        steps: Iterable[Step] = (),
    ) -> LiveWriter:
        """A run begins, with these steps if it goes on from an earlier part."""
        self._begun += 1
        run = LiveWriter(self, f"{self._name}-{self._begun}")
        self._active.add(run.key)
        self._write(self._beginning, run.key, task, profile, sample, model, prompt)
        for step in steps:
            run.step(step, Usage())
        return run

    def close(self) -> None:
        """Remove the feed; nothing is written to it any more."""
        self._off = True
        file, self._file = self._file, None
        if file is not None and file.close():
            sweep_unheld(self._folder)

    def _end(self, key: str) -> None:
        if key not in self._active:
            return
        self._active.discard(key)
        if not self._active:
            self._rewrite_at = _ENOUGH_BYTES
        self._write(_end_line, key)

    def _write(self, line: Callable[..., bytes], *parts: Any) -> None:
        """Write the line of these parts. Making it is also something that must not disturb a run."""
        if self._off:
            return
        try:
            if self._file is None:
                sweep_unheld(self._folder)
                self._file = HeldFile(self._folder / f"{self._name}.jsonl")
            self._file.write(line(*parts))
            if self._file.size > self._rewrite_at:
                self._rewrite(self._file)
        except (OSError, ValueError, TypeError) as error:
            log.debug("no live feed in %s: %s", self._folder, error)
            self.close()

    def _rewrite(self, file: HeldFile) -> None:
        """Drop the lines of runs that have ended."""
        active = {b'{"run":"%b",' % key.encode() for key in self._active}
        lines = file.read().splitlines(keepends=True)
        kept = [line for line in lines if line[: line.find(b",") + 1] in active]
        file.replace(b"".join([*self._defined.values(), *kept]))
        self._rewrite_at = max(_MOST_BYTES, 2 * file.size)

    def _beginning(
        self, key: str, task: Task, profile: Profile, sample: int, model: str, prompt: Sequence[Message] | None
    ) -> bytes:
        fields: dict[str, Any] = {"profile": profile.name, "profile_hash": profile.hash, "sample": sample}
        fields |= {"began": round(time.time(), 3), "model": model}
        if prompt is not None:
            fields["prompt"] = [message.model_dump(mode="json") for message in prompt]
        shown = task.model_copy(update={"tests": None, "prompt": None, "question": _short(task.question)})
        text = shown.model_dump_json(exclude_defaults=True)
        if len(text) > _LONGEST_LINE:
            shown = shown.model_copy(update={"conversation": (), "files": (), "answer": (), "meta": EMPTY})
            text = shown.model_dump_json(exclude_defaults=True)
        line = b'{"run":"%b","task":%b,%b\n' % (key.encode(), text.encode(), orjson.dumps(fields)[1:])
        if profile.hash in self._defined:
            return line
        defined = {"profile": profile.hash, "definition": definition(profile.hash)}
        self._defined[profile.hash] = orjson.dumps(defined) + b"\n"
        return self._defined[profile.hash] + line


class LiveWriter:
    """What one run writes to a feed."""

    __slots__ = ("_feed", "key")

    def __init__(self, feed: LiveFeed, key: str) -> None:
        self._feed, self.key = feed, key

    def step(self, step: Step, usage: Usage) -> None:
        """A step is finished; `usage` is what the run has spent so far, without the time."""
        self._feed._write(_step_line, self.key, step, usage)

    def end(self) -> None:
        """The run is over and, where there is a file for it, written to the file. Only the first call counts."""
        self._feed._end(self.key)


def _step_line(key: str, step: Step, usage: Usage) -> bytes:
    """By hand, because this is done for every step of every run; pydantic takes several times as long."""
    shown: dict[str, Any] = {"agent": step.agent, "text": _short(step.text), "author": step.author}
    if step.surface is None or len(step.surface) <= _LONGEST_TEXT:
        shown |= {"surface": step.surface, "given": step.given}
    if step.repairs:
        shown["repairs"] = [{"kind": repair.kind, "detail": repair.detail} for repair in step.repairs]
    if step.meta:
        shown["meta"] = step.meta
    row = {"run": key, "step": shown, "usage": vars(usage), "at": time.time()}
    line = orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
    if len(line) > _LONGEST_LINE:
        shown.pop("meta", None)
        line = orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
    return line


def _end_line(key: str) -> bytes:
    return b'{"run":"%b","ended":true}\n' % key.encode()


def _short(text: str) -> str:
    return shorten(text, _LONGEST_TEXT)


@contextmanager
def live_feed(folder: str | Path) -> Iterator[LiveFeed]:
    """A feed of the runs that this process makes into a folder, until the block ends."""
    feed = LiveFeed(Path(folder))
    try:
        yield feed
    finally:
        feed.close()


# ---- reading


@dataclass(frozen=True)
class LiveRun:
    """A run that another process is making: what it has written so far."""

    key: str
    """Unique, and the same as long as the run goes on."""
    task: Task
    profile_name: str
    profile_hash: str | None
    """`profile_of(live_trajectory(run))` finds the profile: its definition is in the feed."""
    sample: int
    began: float
    """Seconds since the epoch."""
    model: str = ""
    prompt: tuple[Message, ...] | None = None
    steps: tuple[Step, ...] = ()
    usage: Usage = field(default_factory=Usage)


def live_state(folder: str | Path) -> tuple[tuple[str, int, int], ...]:
    """Something that changes whenever a run of the folder goes on: much cheaper than to read the feeds."""
    found = []
    for path in _feeds(Path(folder)):
        try:
            status = path.stat()
        except OSError:
            continue
        found.append((path.name, status.st_ino, status.st_size))
    return tuple(found)


def read_live(folder: str | Path) -> list[LiveRun]:
    """The runs that other processes are making into this folder now, the oldest first.

    Feeds of processes that were killed, lines that are not complete, and whatever else cannot be read are left out.
    """
    runs: dict[str, LiveRun] = {}
    for path in _feeds(Path(folder)):
        if not is_held(path):
            continue
        try:
            data = path.read_bytes()
        except OSError:  # it ended in the meantime
            continue
        runs |= _read(data)
    return sorted(runs.values(), key=lambda run: (run.began, run.key))


def live_trajectory(run: LiveRun) -> Trajectory:
    """The run so far as a trajectory, marked with `RUNNING` in its meta.

    There is no `Stop` for a run that has not stopped. It has the one that `Chain.trajectory` gives an unfinished run,
    and that would be true if the process ended now. Whoever shows it looks for the mark first.
    """
    return Trajectory(
        task=run.task,
        profile=run.profile_name,
        profile_hash=run.profile_hash,
        steps=run.steps,
        stop=Stop.INTERRUPTED,
        usage=run.usage,
        prompt=run.prompt,
        sample=run.sample,
        meta={"model": run.model, RUNNING: True},
    )


def _feeds(folder: Path) -> list[Path]:
    try:
        names = sorted(os.listdir(folder / FOLDER))
    except OSError:
        return []
    return [folder / FOLDER / name for name in names if name.endswith(".jsonl") and not name.startswith(".")]


def _read(data: bytes) -> dict[str, LiveRun]:
    begun: dict[str, Mapping[str, Any]] = {}
    steps: dict[str, list[Step]] = {}
    usage: dict[str, Usage] = {}
    for line in data.splitlines():
        try:
            row = orjson.loads(line)
            if "definition" in row:
                remember(str(row["definition"]))
            elif "task" in row:
                begun[row["run"]] = row
            elif "step" in row:
                steps.setdefault(row["run"], []).append(Step.model_validate(row["step"]))
                spent = {**row["usage"], "seconds": max(row["at"] - begun[row["run"]]["began"], 0.0)}
                usage[row["run"]] = Usage.model_validate(spent)
            elif row.get("ended"):
                begun.pop(row["run"], None)
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    found = {}
    for key, row in begun.items():
        try:
            found[key] = _run(key, row, steps.get(key, ()), usage.get(key, Usage()))
        except (ValidationError, ValueError, TypeError, KeyError):
            continue
    return found


def _run(key: str, row: Mapping[str, Any], steps: Iterable[Step], usage: Usage) -> LiveRun:
    prompt = row.get("prompt")
    return LiveRun(
        key=key,
        task=Task.model_validate(row["task"]),
        profile_name=str(row["profile"]),
        profile_hash=row.get("profile_hash"),
        sample=int(row["sample"]),
        began=float(row["began"]),
        model=str(row.get("model", "")),
        prompt=tuple(Message.model_validate(message) for message in prompt) if prompt is not None else None,
        steps=tuple(steps),
        usage=usage,
    )
