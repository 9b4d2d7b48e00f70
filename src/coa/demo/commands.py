"""Runs commands one after another, each in a separate process. Finished commands are not run again."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Final, Protocol

import orjson

from coa.demo.recipes import DemoStage
from coa.errors import CoaError
from coa.folder import lock, refuse_other, write_atomic
from coa.report import plural

STATE: Final = "demo.json"
_ENVIRONMENT: Final = {
    "OMP_WAIT_POLICY": "PASSIVE",
    # glibc keeps freed memory, in large pages, for the next pass, which is a tenth faster.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(1 << 28),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
"""Environment of each stage, where the user has not set other values."""


class Follower(Protocol):
    """Shows a person how far the demo is."""

    def stage(self, stages: Sequence[DemoStage], done: Mapping[str, float], stage: DemoStage, command: str) -> None:
        """A stage begins, or turns out to be finished. `done` has the seconds of all that are finished."""

    def output(self, stage: DemoStage) -> IO[bytes] | io.FileIO | None:
        """Where the stage prints to; None for where the demo prints to."""

    def failed(self, stage: DemoStage) -> str:
        """What to print when a stage has failed."""


class Printed:
    """Prints each command above its output, for logs and pipes."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def stage(self, stages: Sequence[DemoStage], done: Mapping[str, float], stage: DemoStage, command: str) -> None:
        place, left = f"[{stages.index(stage) + 1}/{len(stages)}]", time_left(stages, done)
        self._say(f"\n{place} {stage.about}" + (f"; {in_words(left)} left in all" if left else "") + f"\n$ {command}")
        if stage.name in done:
            self._say(f"finished before, in {clock(done[stage.name])}")

    def output(self, stage: DemoStage) -> None:
        return None

    def failed(self, stage: DemoStage) -> str:
        return ""


def run_stages(
    stages: Sequence[DemoStage], out: Path, made_with: Mapping[str, Any], follower: Follower
) -> float | None:
    """Run all stages in order. Return the seconds they took, or None after Ctrl-C.

    A folder belongs to one recipe and one seed. Stages that are finished there are not run again.
    """
    with lock(out):
        done = _Done.of(out / STATE, made_with)
        for stage in stages:
            if stage.name in done.seconds:
                follower.stage(stages, done.seconds, stage, stage.shown())
                continue
            more = stage.again if done.begin(stage) else ()
            follower.stage(stages, done.seconds, stage, stage.shown(more))
            seconds = _run(stage, more, follower)
            if seconds is None:
                return None
            done.end(stage, seconds)
        return sum(done.seconds.values())


def time_left(
    stages: Sequence[DemoStage], done: Mapping[str, float], running: DemoStage | None = None, gone: float = 0.0
) -> float:
    """The usual time of the remaining stages, and more where this machine takes longer than usual. `gone` is how long
    the running stage has been at work."""
    took = dict(done)
    if running is not None and gone > running.seconds:
        took[running.name] = gone
    expected = sum(stage.seconds for stage in stages if stage.name in took)
    pace = max(sum(took.values()) / expected, 1.0) if expected > 60 else 1.0
    left = sum(pace * stage.seconds for stage in stages if stage.name not in done and stage is not running)
    return left + (0.0 if running is None else max(pace * running.seconds - gone, 0.0))


def in_words(seconds: float) -> str:
    """A time that is only an estimate."""
    if seconds < 45:
        return "less than a minute"
    return f"about {plural(max(round(seconds / 60), 1), 'minute')}"


def clock(seconds: float) -> str:
    """Minutes and seconds, and hours where there are any."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class _Done:
    """The finished stages, in a file. A stage that did not finish is run again and resumes from its folder."""

    def __init__(self, file: Path, made_with: Mapping[str, Any], seconds: dict[str, float], begun: str) -> None:
        self._file, self._made_with, self.seconds, self._begun = file, made_with, seconds, begun

    @classmethod
    def of(cls, file: Path, made_with: Mapping[str, Any]) -> _Done:
        if not file.is_file():
            return cls(file, made_with, {}, "")
        kept = orjson.loads(file.read_bytes())
        refuse_other(file.parent, kept, made_with)
        return cls(file, made_with, kept["seconds"], kept.get("begun", ""))

    def begin(self, stage: DemoStage) -> bool:
        """Note that the stage starts; whether it was started before."""
        again, self._begun = self._begun == stage.name, stage.name
        self._keep()
        return again

    def end(self, stage: DemoStage, seconds: float) -> None:
        self.seconds[stage.name], self._begun = seconds, ""
        self._keep()

    def _keep(self) -> None:
        state = {**self._made_with, "seconds": self.seconds, "begun": self._begun}
        write_atomic(self._file, orjson.dumps(state, option=orjson.OPT_INDENT_2))


def _run(stage: DemoStage, more: Sequence[str], follower: Follower) -> float | None:
    """Run a stage; the seconds it took, or None after Ctrl-C."""
    began = time.monotonic()
    command = [sys.executable, "-m", "coa.cli", *stage.command, *more]
    with ExitStack() as stack:
        output = follower.output(stage)
        if output is not None:
            stack.enter_context(output)
        often = {} if output is None else {"COA_PROGRESS_SECONDS": "2"}
        environment = {**_ENVIRONMENT, **often, **os.environ}
        process = stack.enter_context(subprocess.Popen(command, env=environment, stdout=output, stderr=output))
        code = _ended(process)
    if code is None:
        return None
    if code:
        hint = "fix what it reports, then run the demo again; it resumes with this stage"
        found = follower.failed(stage)
        raise CoaError(f"this stage failed: {stage.shown(more)}" + (f"\n{found}" if found else ""), hint=hint)
    return time.monotonic() - began


def _ended(process: subprocess.Popen[bytes]) -> int | None:
    """The exit code, or None after Ctrl-C. The stage gets the signal too and may take its time to save its work; a
    second Ctrl-C kills it."""
    try:
        return process.wait()
    except KeyboardInterrupt:
        try:
            process.wait()
        except KeyboardInterrupt:
            process.kill()
        return None
