"""A process that runs teams, one task after another. The parent can kill it at any time without losing a record.

smolagents is synchronous and cannot be interrupted, so a time limit needs a process: when the time is up, a second
thread writes what was recorded so far, and the parent kills the process.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from coa.distill.recorder import Recorder
from coa.distill.teaching.results import Broken, Done, Ready, Spent, empty_run, trace_path, write_trace
from coa.distill.teaching.team import Team, build, server_model
from coa.distill.team_run import LeftOut, TeamRun, without_times
from coa.errors import CoaError, RecordingError
from coa.importing import import_function
from coa.trajectory.types import Failure, FailureSite, Stop, Task, Usage


def serve(connection: Any, team: Team, out: Path, time_limit_s: float, log: Path) -> None:
    """Take tasks until asked to stop (None) or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    _log_to(log)
    try:
        factory = import_function(team.factory, what="the team", error=RecordingError)
        factory, model = partial(factory, **dict(team.arguments)), server_model(team)
    except CoaError as error:
        connection.send(Broken(error))
        return
    except Exception as error:
        connection.send(Broken(RecordingError(f"the team cannot be loaded: {type(error).__name__}: {error}")))
        return
    connection.send(Ready())
    while True:
        try:
            task = connection.recv()
        except (EOFError, OSError):
            return
        if task is None:
            return
        attempt = _Attempt(task, connection, trace_path(out, task.id), team.timeless)
        attempt.run(partial(build, factory, model, task), time_limit_s)


class _Attempt:
    """One task. It is settled by the end of the team's run or by the clock, whichever comes first."""

    def __init__(self, task: Task, connection: Any, file: Path, timeless: bool) -> None:
        self.task, self._connection, self._file, self._timeless = task, connection, file, timeless
        self._guard = threading.Lock()
        self._settled = False
        self._recorder: Recorder | None = None

    def run(self, make: Callable[[], Any], time_limit_s: float) -> None:
        clock = threading.Timer(time_limit_s, self._time_is_up)
        clock.daemon = True
        clock.start()
        try:
            with Recorder(make(), self.task, spending=self._spent) as recorder:
                self._recorder = recorder
                self._settle(recorder.run())
        except RecordingError as error:
            self._settle(self._refused(error), refused=True)
        except Exception as error:
            # The factory failed for this task; the other tasks go on.
            failure = Failure(site=FailureSite.RUNTIME, message=f"the factory failed: {type(error).__name__}: {error}")
            self._settle(empty_run(self.task, Stop.FAILED, failure))
        finally:
            clock.cancel()

    def _spent(self, usage: Usage) -> None:
        """Report what a model call took, while the task goes on."""
        with self._guard:
            if not self._settled:
                with suppress(OSError):  # the parent is gone; the end of the task notices that
                    self._connection.send(Spent(usage))

    def _time_is_up(self) -> None:
        try:
            run = self._recorder.snapshot(Stop.TIME) if self._recorder is not None else None
        except RecordingError as error:
            self._settle(self._refused(error), refused=True, still_running=True)
            return
        self._settle(run or empty_run(self.task, Stop.TIME), still_running=True)

    def _settle(self, run: TeamRun, *, refused: bool = False, still_running: bool = False) -> None:
        with self._guard:
            if self._settled:
                return
            self._settled = True
            problem = run.failure.message if run.failure else None
            try:
                write_trace(self._file, without_times(run) if self._timeless else run)
            except CoaError as error:
                problem = error.message
            try:
                self._connection.send(Done(run.stop, run.usage, problem, refused, still_running))
            except OSError:
                os._exit(1)  # the parent is gone; the file is written

    def _refused(self, error: RecordingError) -> TeamRun:
        """A run that was not recorded faithfully: only the reason and the cost are kept."""
        usage = self._recorder.spent() if self._recorder is not None else None
        left = LeftOut(what="the whole run", reason=str(error), usage=usage)
        return empty_run(self.task, Stop.FAILED, Failure(site=FailureSite.RUNTIME, message=error.message), left)


def _log_to(path: Path) -> None:
    """Sends what teams print to a file, including what libraries write past Python."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
