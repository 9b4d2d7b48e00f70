"""Many tasks at once: a bounded number of worker processes, each replaced when it dies or has to be ended."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from coa.distill.teaching.files import stop_of, trace_path, write_trace
from coa.distill.teaching.messages import Broken, Done, Ready, nothing
from coa.distill.teaching.team import Team
from coa.distill.team_run import LeftOut
from coa.errors import RecordingError
from coa.folder import claim, lock
from coa.trajectory.types import Failure, FailureSite, Stop, Task, Usage
from coa.version import __version__

GRACE_S: Final = 10.0
"""After the time limit, for the worker to write down what there is."""
_TICK_S: Final = 0.2


@dataclass
class TeachCounts:
    """Where it stands. `usage` is what this call spent, not what earlier ones did."""

    total: int
    resumed: int = 0
    answered: int = 0
    failed: int = 0
    refused: int = 0
    cut: int = 0
    """Ended because their time was up."""
    running: int = 0
    usage: Usage = field(default_factory=Usage)
    problems: dict[str, int] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    @property
    def done(self) -> int:
        return self.resumed + self.answered + self.failed + self.refused + self.cut

    def add(self, done: Done) -> None:
        self.usage = self.usage + done.usage
        if done.refused:
            self.refused += 1
        elif done.stop is Stop.TIME:
            self.cut += 1
        elif done.stop is Stop.FAILED:
            self.failed += 1
        else:
            self.answered += 1
        if done.problem:
            self.problems[done.problem] = self.problems.get(done.problem, 0) + 1


def run_team(
    tasks: Iterable[Task],
    team: Team,
    out: str | Path,
    *,
    jobs: int = 8,
    time_limit_s: float = 1800.0,
    retry_failed: bool = False,
    show: Callable[[TeachCounts], None] = lambda counts: None,
) -> TeachCounts:
    """Run a team over tasks and record each run. Tasks that have a file in `out` already are not run again.

    Ctrl-C ends the workers and is raised; what was finished is in its files, and the rest is run the next time.
    """
    folder, waiting, progress = Path(out), deque[Task](), TeachCounts(total=0)
    with lock(folder):
        _claim(folder, team, write=False)
        note = partial(_claim, folder, team, write=True)
        for task in tasks:
            progress.total += 1
            stop = stop_of(trace_path(folder, task.id))
            if stop is None or (retry_failed and stop in (Stop.FAILED, Stop.TIME)):
                waiting.append(task)
            else:
                progress.resumed += 1
        if waiting:
            pool = _Pool(team, folder, min(max(1, jobs), len(waiting)), time_limit_s, note)
            try:
                pool.run(waiting, progress, show)
            finally:
                pool.close()
                progress.running = 0
        else:
            note()
    show(progress)
    return progress


@dataclass(eq=False)
class _Worker:
    process: Any
    connection: Any
    ready: bool = False
    task: Task | None = None
    deadline: float = 0.0


class _Pool:
    def __init__(self, team: Team, out: Path, size: int, time_limit_s: float, note: Callable[[], None]) -> None:
        self._team, self._out, self._limit = team, out, time_limit_s
        self._note = note
        # Forked from a process that has smolagents loaded and no threads: quick, and nothing of ours is shared.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["coa.distill.teaching.worker"])
        self._workers: list[_Worker] = []
        self._size = size
        self._started = 0
        self._ever_ready = False

    def run(self, waiting: deque[Task], progress: TeachCounts, show: Callable[[TeachCounts], None]) -> None:
        while waiting or any(worker.task for worker in self._workers):
            while len(self._workers) < min(self._size, len(waiting) + sum(w.task is not None for w in self._workers)):
                self._workers.append(self._start())
            for worker in self._workers:
                if worker.ready and worker.task is None and waiting:
                    self._give(worker, waiting)
            progress.running = sum(worker.task is not None for worker in self._workers)
            show(progress)
            handles = [handle for w in self._workers for handle in (w.connection, w.process.sentinel)]
            active = set(wait(handles, timeout=_TICK_S))
            for worker in list(self._workers):
                if worker.connection in active or worker.process.sentinel in active:
                    self._hear(worker, progress)
                if worker.task is not None and time.monotonic() > worker.deadline:
                    self._lost(worker, progress, Stop.TIME, None)

    def close(self) -> None:
        for worker in list(self._workers):
            self._end(worker)

    def _start(self) -> _Worker:
        self._started += 1
        here, there = self._context.Pipe()
        log = self._out / ".log" / f"worker-{self._started}.log"
        process = self._context.Process(
            target=_serve,
            args=(there, self._team, self._out, self._limit, log),
            daemon=True,
            name=f"team-{self._started}",
        )
        with _no_main():
            process.start()
        there.close()
        return _Worker(process, here)

    def _give(self, worker: _Worker, waiting: deque[Task]) -> None:
        worker.task = waiting.popleft()
        worker.deadline = time.monotonic() + self._limit + GRACE_S
        try:
            worker.connection.send(worker.task)
        except OSError:
            waiting.appendleft(worker.task)
            worker.task = None
            self._end(worker)

    def _hear(self, worker: _Worker, progress: TeachCounts) -> None:
        try:
            message = worker.connection.recv() if worker.connection.poll() else None
        except (EOFError, OSError):
            message = None
        match message:
            case Ready():
                if not self._ever_ready:
                    self._note()
                worker.ready = self._ever_ready = True
            case Broken(error):
                raise error
            case Done():
                worker.task = None
                progress.add(message)
                if message.cut:
                    self._end(worker)
            case _ if not worker.process.is_alive():
                self._died(worker, progress)

    def _died(self, worker: _Worker, progress: TeachCounts) -> None:
        worker.process.join()
        code = worker.process.exitcode
        if worker.task is not None:
            failure = Failure(site=FailureSite.RUNTIME, message=f"the team's process ended with code {code}")
            self._lost(worker, progress, Stop.FAILED, failure)
            return
        self._end(worker)
        if not self._ever_ready:
            raise RecordingError(
                f"the team's process ended with code {code} before it began", hint=f"see {self._out / '.log'}"
            )

    def _lost(self, worker: _Worker, progress: TeachCounts, stop: Stop, failure: Failure | None) -> None:
        """The worker will not say any more how its task ended."""
        task = worker.task
        assert task is not None
        self._end(worker)
        path = trace_path(self._out, task.id)
        written = stop_of(path)
        if written is not None and written not in (Stop.FAILED, Stop.TIME):
            stop = Stop(written)  # it wrote its file and could only not say so
        else:
            unknown = LeftOut(what="what the team did and spent", reason="its process ended before it could report")
            write_trace(path, nothing(task, stop, failure).model_copy(update={"left_out": (unknown,)}))
        progress.add(Done(task.id, stop, Usage(), failure.message if failure else None))

    def _end(self, worker: _Worker) -> None:
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
    """In the child, which alone loads smolagents."""
    from coa.distill.teaching.worker import serve

    serve(connection, team, out, time_limit_s, log)


def _claim(folder: Path, team: Team, *, write: bool) -> None:
    """Two teams' runs in one folder could not be distinguished. It is written once the team is known to exist."""
    record = {
        "version": __version__,
        "team": team.factory,
        "model": team.model_name,
        "url": team.url,
        **dict(team.arguments),
    }
    # What an older run did not note counts as the same.
    claim(folder, "teach", record, free=("version", "url"), defaults=record, write=write, renew=True)
