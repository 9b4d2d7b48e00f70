"""Runs many tasks at once: a limited number of worker processes, each replaced when it dies or has to be killed.

A worker (`worker.py`) runs one task after another and reports each by a message. The parent hands out the tasks, and it
writes the trace of a task whose worker can no longer do so: because it died, or because it did not report in time.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from coa.distill.teaching.results import (
    Broken,
    Done,
    Ready,
    Spent,
    TeachReport,
    claim_teaching,
    empty_run,
    stop_of,
    trace_path,
    unfinished,
    write_trace,
)
from coa.distill.teaching.team import Team
from coa.distill.team_run import LeftOut
from coa.errors import RecordingError
from coa.folder import lock
from coa.models.price import Price
from coa.progress import Progress, Silent
from coa.trajectory.types import Failure, FailureSite, Stop, Task, Usage

GRACE_S: Final = 10.0
"""Time after the limit in which a worker can still write down what was recorded."""
_TICK_S: Final = 0.2


def run_team(
    tasks: Iterable[Task],
    team: Team,
    out: str | Path,
    *,
    jobs: int = 8,
    time_limit_s: float = 1800.0,
    retry_failed: bool = False,
    price: Price | None = None,
    progress: Progress | None = None,
) -> TeachReport:
    """Run a team over tasks and record each run. Tasks that have a file in `out` already are not run again.

    Ctrl-C kills the workers and is raised. Finished runs are in their files, and the next call runs the rest.
    """
    report, progress = TeachReport(Path(out), price=price), progress or Silent()
    with lock(report.out):
        _claim(report.out, team, write=False)
        waiting = unfinished(tasks, report, lambda task: stop_of(trace_path(report.out, task.id)), retry_failed)
        if waiting:
            pool = _Pool(team, report, min(max(1, jobs), len(waiting)), time_limit_s)
            try:
                pool.run(waiting, progress)
            finally:
                pool.close()
                report.running, report.unfinished = 0, Usage()
        else:
            _claim(report.out, team, write=True)
    progress.update(report.done, report.total, report.note())
    report.seconds = time.monotonic() - report.started
    return report


@dataclass(eq=False)
class _TeamWorker:
    process: Any
    connection: Any
    ready: bool = False
    task: Task | None = None
    spent: Usage = field(default_factory=Usage)
    """What its task has taken so far."""
    deadline: float = 0.0


class _Pool:
    def __init__(self, team: Team, report: TeachReport, size: int, time_limit_s: float) -> None:
        self._team, self._report, self._out, self._limit = team, report, report.out, time_limit_s
        # Forked from a process that has smolagents loaded and no threads: quick, and nothing of ours is shared.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["coa.distill.teaching.worker"])
        self._workers: list[_TeamWorker] = []
        self._size = size
        self._started = 0
        self._ever_ready = False

    def run(self, waiting: deque[Task], progress: Progress) -> None:
        while waiting or any(worker.task for worker in self._workers):
            while len(self._workers) < min(self._size, len(waiting) + sum(w.task is not None for w in self._workers)):
                self._workers.append(self._start())
            for worker in self._workers:
                if worker.ready and worker.task is None and waiting:
                    self._give(worker, waiting)
            self._report.running = sum(worker.task is not None for worker in self._workers)
            self._report.unfinished = Usage.sum(worker.spent for worker in self._workers)
            progress.update(self._report.done, self._report.total, self._report.note())
            handles = [handle for w in self._workers for handle in (w.connection, w.process.sentinel)]
            active = set(wait(handles, timeout=_TICK_S))
            for worker in list(self._workers):
                if worker.connection in active or worker.process.sentinel in active:
                    self._hear(worker)
                if worker.task is not None and time.monotonic() > worker.deadline:
                    self._lost(worker, Stop.TIME, None)

    def close(self) -> None:
        for worker in list(self._workers):
            self._end(worker)

    def _start(self) -> _TeamWorker:
        self._started += 1
        here, there = self._context.Pipe()
        log = self._out / ".log" / f"worker-{self._started}.log"
        work = (there, self._team, self._out, self._limit, log)
        process = self._context.Process(target=_serve, args=work, daemon=True, name=f"team-{self._started}")
        with _no_main():
            process.start()
        there.close()
        return _TeamWorker(process, here)

    def _give(self, worker: _TeamWorker, waiting: deque[Task]) -> None:
        worker.task = waiting.popleft()
        worker.deadline = time.monotonic() + self._limit + GRACE_S
        try:
            worker.connection.send(worker.task)
        except OSError:
            waiting.appendleft(worker.task)
            worker.task = None
            self._end(worker)

    def _hear(self, worker: _TeamWorker) -> None:
        try:
            message = worker.connection.recv() if worker.connection.poll() else None
        except (EOFError, OSError):
            message = None
        match message:
            case Ready():
                if not self._ever_ready:
                    _claim(self._out, self._team, write=True)
                worker.ready = self._ever_ready = True
            case Broken(error):
                raise error
            case Spent(usage):
                worker.spent = worker.spent + usage
            case Done():
                worker.task, worker.spent = None, Usage()
                self._report.add(message)
                if message.still_running:
                    self._end(worker)
            case _ if not worker.process.is_alive():
                self._died(worker)

    def _died(self, worker: _TeamWorker) -> None:
        worker.process.join()
        code = worker.process.exitcode
        if worker.task is not None:
            failure = Failure(site=FailureSite.RUNTIME, message=f"the team's process ended with code {code}")
            self._lost(worker, Stop.FAILED, failure)
            return
        self._end(worker)
        if not self._ever_ready:
            raise RecordingError(
                f"the team's process ended with code {code} before it began", hint=f"see {self._out / '.log'}"
            )

    def _lost(self, worker: _TeamWorker, stop: Stop, failure: Failure | None) -> None:
        """The worker can no longer report how its task ended."""
        task = worker.task
        assert task is not None
        self._end(worker)
        path = trace_path(self._out, task.id)
        written = stop_of(path)
        if written is not None and written not in (Stop.FAILED, Stop.TIME):
            stop = Stop(written)  # it wrote its file and died before it could report
        else:
            unknown = LeftOut(what="what the team did and spent", reason="its process ended before it could report")
            write_trace(path, empty_run(task, stop, failure, unknown))
        self._report.add(Done(stop, Usage(), failure.message if failure else None))

    def _end(self, worker: _TeamWorker) -> None:
        if worker in self._workers:
            self._workers.remove(worker)
        worker.task = None
        worker.process.kill()
        worker.process.join()
        worker.connection.close()


@contextmanager
def _no_main() -> Iterator[None]:
    """Keeps a child from importing the caller's script again, which would start it all over where it has no guard."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _serve(connection: Any, team: Team, out: Path, time_limit_s: float, log: Path) -> None:
    """Runs in the child: only there is smolagents loaded."""
    from coa.distill.teaching.worker import serve

    serve(connection, team, out, time_limit_s, log)


def _claim(folder: Path, team: Team, *, write: bool) -> None:
    """Written once the team is known to exist."""
    named = {"team": team.factory, "model": team.model_name, "url": team.url, **dict(team.arguments)}
    claim_teaching(folder, write=write, **named)
