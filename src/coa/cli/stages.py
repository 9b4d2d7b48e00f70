"""Commands one after another, each in a process of its own. Those that came to their end are not run again."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import typer

from coa.errors import CoaError

STATE: Final = "demo.json"
_ENVIRONMENT: Final = {
    "OMP_WAIT_POLICY": "PASSIVE",
    # glibc: memory that is freed is kept, in large pages, for the next pass: a tenth quicker.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(1 << 28),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
"""Of each stage, where the user has not chosen otherwise."""


@dataclass(frozen=True, slots=True)
class Stage:
    name: str
    about: str
    command: tuple[str, ...]
    seconds: float
    """What it took on two idle cores; only for the time left."""
    again: tuple[str, ...] = ()
    """Added to the command where it was begun before."""

    def shown(self, more: Sequence[str] = ()) -> str:
        return shlex.join(["coa", *self.command, *more])


def run_stages(stages: Sequence[Stage], out: Path, made_with: Mapping[str, Any]) -> float:
    """All of them, in order; how long they took. A folder is of one recipe and one seed."""
    from coa.folder import lock

    with lock(out):
        return _run_stages(stages, out, made_with)


def _run_stages(stages: Sequence[Stage], out: Path, made_with: Mapping[str, Any]) -> float:
    done = _Done.of(out / STATE, made_with)
    for number, stage in enumerate(stages, start=1):
        left = time_left(stages, done.seconds)
        typer.echo(f"\n[{number}/{len(stages)}] {stage.about}" + (f"; about {span(left)} left in all" if left else ""))
        if stage.name in done.seconds:
            typer.echo(f"$ {stage.shown()}\ndone before, in {span(done.seconds[stage.name])}")
            continue
        more = stage.again if done.begin(stage) else ()
        typer.echo(f"$ {stage.shown(more)}")
        done.end(stage, _run(stage, more))
    return sum(done.seconds.values())


def time_left(stages: Sequence[Stage], done: Mapping[str, float]) -> float:
    """As long as the stages take elsewhere, or longer by as much as those before took longer here."""
    behind = [stage for stage in stages if stage.name in done]
    expected = sum(stage.seconds for stage in behind)
    pace = sum(done[stage.name] for stage in behind) / expected if expected > 60 else 1.0
    return max(pace, 1.0) * sum(stage.seconds for stage in stages if stage.name not in done)


def span(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


class _Done:
    """Which stages came to their end, in a file. One that did not is run again, and resumes by itself."""

    def __init__(self, file: Path, made_with: Mapping[str, Any], seconds: dict[str, float], begun: str) -> None:
        self._file, self._made_with, self.seconds, self._begun = file, made_with, seconds, begun

    @classmethod
    def of(cls, file: Path, made_with: Mapping[str, Any]) -> _Done:
        import orjson

        from coa.folder import refuse_other

        if not file.is_file():
            return cls(file, made_with, {}, "")
        kept = orjson.loads(file.read_bytes())
        refuse_other(file.parent, kept, made_with)
        return cls(file, made_with, kept["seconds"], kept.get("begun", ""))

    def begin(self, stage: Stage) -> bool:
        """Whether it was begun before."""
        again, self._begun = self._begun == stage.name, stage.name
        self._keep()
        return again

    def end(self, stage: Stage, seconds: float) -> None:
        self.seconds[stage.name], self._begun = seconds, ""
        self._keep()

    def _keep(self) -> None:
        import orjson

        from coa.folder import write_atomic

        told = {**self._made_with, "seconds": self.seconds, "begun": self._begun}
        write_atomic(self._file, orjson.dumps(told, option=orjson.OPT_INDENT_2))


def _run(stage: Stage, more: Sequence[str]) -> float:
    began = time.monotonic()
    command = [sys.executable, "-m", "coa.cli", *stage.command, *more]
    with subprocess.Popen(command, env={**_ENVIRONMENT, **os.environ}) as process:
        code = _ended(process)
    if code is None:
        typer.echo("\ninterrupted; the same command goes on from here")
        raise typer.Exit(1)
    if code:
        raise CoaError(
            f"this stage failed: {stage.shown(more)}", hint="mend what it says above; the demo then goes on from here"
        )
    return time.monotonic() - began


def _ended(process: subprocess.Popen[bytes]) -> int | None:
    """Its exit code, or None after Ctrl-C: the stage gets it too and saves what it has, for as long as that takes. A
    second one ends it."""
    try:
        return process.wait()
    except KeyboardInterrupt:
        try:
            process.wait()
        except KeyboardInterrupt:
            process.kill()
        return None
