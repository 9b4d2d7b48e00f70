"""How the result of a run gets from a worker to its parent: an ATIF file for each task, and a short message.

The file is named after the task and is written completely or not at all. The parent needs no smolagents to understand
the messages; `TeachReport` sums them up.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from pydantic import JsonValue

from coa.distill.atif_writer import EXTRA, to_atif
from coa.distill.run_files import ATIF, run_file
from coa.distill.team_run import RECORDED, AgentRun, LeftOut, Source, TeamRun
from coa.errors import CoaError
from coa.folder import claim, write_atomic
from coa.models.price import Price
from coa.progress import time_left
from coa.report import plural
from coa.trajectory.types import Failure, Stop, Task, Usage
from coa.version import __version__


def trace_path(folder: Path, task_id: str) -> Path:
    return run_file(folder, task_id, ATIF)


def write_trace(path: Path, run: TeamRun) -> None:
    write_atomic(path, orjson.dumps(to_atif(run), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def stop_of(path: Path) -> str | None:
    """How the run in a file ended; None if there is no such file or we did not write it."""
    try:
        document: Any = orjson.loads(path.read_bytes())
        return str(document["extra"][EXTRA]["team"]["stop"])
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
        return None


def empty_run(task: Task, stop: Stop, failure: Failure | None = None, left_out: LeftOut | None = None) -> TeamRun:
    """A run of which nothing is known but how it ended and, in `left_out`, what is missing."""
    root = AgentRun(id="manager-1", agent="manager", request=task.question_in_context)
    missing = (left_out,) if left_out is not None else ()
    return TeamRun(task=task, root=root, source=Source(format=RECORDED), stop=stop, failure=failure, left_out=missing)


def unfinished(
    tasks: Iterable[Task], report: TeachReport, stop: Callable[[Task], str | None], retry_failed: bool
) -> deque[Task]:
    """The tasks that are still to be run; `stop` says how the recorded run of a task ended."""
    waiting = deque[Task]()
    for task in tasks:
        report.total += 1
        ended = stop(task)
        if ended is None or (retry_failed and ended in (Stop.FAILED, Stop.TIME)):
            waiting.append(task)
        else:
            report.resumed += 1
    return waiting


def claim_teaching(folder: Path, *, write: bool = True, **named: JsonValue) -> None:
    """Runs of two teams in one folder could not be distinguished."""
    record = {"version": __version__, "team": None, "command": None, "model": None, **named}
    # A key that an older run did not write counts as equal.
    claim(folder, "teach", record, free=("version", "url"), defaults=record, write=write, renew=True)


@dataclass(frozen=True, slots=True)
class Ready:
    """The team's factory was loaded."""


@dataclass(frozen=True, slots=True)
class Broken:
    """No task can be run, because the factory or the model cannot be loaded."""

    error: CoaError


@dataclass(frozen=True, slots=True)
class Done:
    """A task has ended, well or not, and its file is written."""

    stop: Stop
    usage: Usage
    problem: str | None = None
    refused: bool = False
    still_running: bool = False
    """The time was up and the team is still at work, so its process has to be killed."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What one model call of an unfinished task took."""

    usage: Usage


@dataclass
class TeachReport:
    """Result of `teach`. Counts and usage are those of this call; `resumed` tasks had been recorded before."""

    out: Path
    total: int = 0
    resumed: int = 0
    answered: int = 0
    failed: int = 0
    refused: int = 0
    """Runs that could not be recorded faithfully; only their cost is kept."""
    timed_out: int = 0
    running: int = 0
    usage: Usage = field(default_factory=Usage)
    unfinished: Usage = field(default_factory=Usage)
    """Usage of running tasks so far; it becomes a part of `usage` when they end."""
    price: Price | None = None
    problems: dict[str, int] = field(default_factory=dict)
    """What went wrong, and how often."""
    started: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    """Duration of the call, once it has ended."""

    @property
    def done(self) -> int:
        return self.resumed + self.answered + self.failed + self.refused + self.timed_out

    @property
    def complete(self) -> bool:
        """Whether every run of this call ended with an answer or by the team's decision."""
        return not (self.failed or self.refused or self.timed_out)

    @property
    def cost(self) -> float | None:
        """Cost of the finished runs; None if no price is known."""
        return None if self.price is None else self.price.of(self.usage)

    def add(self, done: Done) -> None:
        self.usage = self.usage + done.usage
        if done.refused:
            self.refused += 1
        elif done.stop is Stop.TIME:
            self.timed_out += 1
        elif done.stop is Stop.FAILED:
            self.failed += 1
        else:
            self.answered += 1
        if done.problem:
            self.problems[done.problem] = self.problems.get(done.problem, 0) + 1

    def note(self) -> str:
        """One line with the counts, the usage, the cost and the time left."""
        named = {"resumed": self.resumed, "answered": self.answered, "failed": self.failed}
        named |= {"refused": self.refused, "timed out": self.timed_out, "running": self.running}
        parts = [f"{count} {name}" for name, count in named.items() if count]
        spent = self.usage + self.unfinished
        parts.append(f"{spent.total_tokens:,} tokens in {plural(spent.model_calls, 'call')}")
        if self.running:
            pace = spent.completion_tokens / max(time.monotonic() - self.started, 1e-9)
            parts.append(f"{pace:.0f} tokens/s written")
        if self.cost is not None:
            parts.append(f"cost {self.cost:.4g}")
        now, left = self.done - self.resumed, self.total - self.done
        if now and left:
            parts.append(time_left((time.monotonic() - self.started) / now * left))
        return ", ".join(parts)
