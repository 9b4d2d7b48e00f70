"""A process that runs teams, one task after another. The parent can end it at any time without loss.

smolagents is synchronous and cannot be interrupted, so a time limit needs a process: when the time is up, a second
thread writes down what was recorded by then, and the parent ends the process.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from coa.distill.recorder import Recorder
from coa.distill.teaching.files import trace_path, write_trace
from coa.distill.teaching.messages import Broken, Done, Ready, nothing
from coa.distill.teaching.team import Team, build, server_model
from coa.distill.team_run import LeftOut, TeamRun, without_times
from coa.errors import CoaError, RecordingError
from coa.importing import import_function
from coa.trajectory.types import Failure, FailureSite, Stop, Task


def serve(connection: Any, team: Team, out: Path, time_limit_s: float, log: Path) -> None:
    """Take tasks until asked to stop (None) or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
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
        _Attempt(task, connection, out, time_limit_s, team.timeless).run(lambda task=task: build(factory, model, task))  # type: ignore[misc]


class _Attempt:
    """One task. Either the team's end or the clock settles it, whichever comes first."""

    def __init__(self, task: Task, connection: Any, out: Path, time_limit_s: float, timeless: bool = False) -> None:
        self.task = task
        self._connection = connection
        self._out = out
        self._limit = time_limit_s
        self._timeless = timeless
        self._guard = threading.Lock()
        self._settled = False
        self._recorder: Recorder | None = None

    def run(self, make: Callable[[], Any]) -> None:
        clock = threading.Timer(self._limit, self._time_is_up)
        clock.daemon = True
        clock.start()
        try:
            with Recorder(make(), self.task) as recorder:
                self._recorder = recorder
                self._settle(recorder.run())
        except RecordingError as error:
            self._settle(refused(self.task, error, self._recorder), refusal=error)
        except Exception as error:
            # The factory broke, for this task: the others go on.
            failure = Failure(site=FailureSite.RUNTIME, message=f"the factory failed: {type(error).__name__}: {error}")
            self._settle(nothing(self.task, Stop.FAILED, failure))
        finally:
            clock.cancel()

    def _time_is_up(self) -> None:
        try:
            run = self._recorder.snapshot(Stop.TIME) if self._recorder is not None else None
        except RecordingError as error:
            self._settle(refused(self.task, error, self._recorder), refusal=error, cut=True)
            return
        self._settle(run or nothing(self.task, Stop.TIME), cut=True)

    def _settle(self, run: TeamRun, *, refusal: RecordingError | None = None, cut: bool = False) -> None:
        with self._guard:
            if self._settled:
                return
            self._settled = True
            problem = run.failure.message if run.failure else None
            try:
                write_trace(trace_path(self._out, self.task.id), without_times(run) if self._timeless else run)
            except CoaError as error:
                problem = error.message
            try:
                self._connection.send(Done(self.task.id, run.stop, run.usage, problem, refusal is not None, cut))
            except OSError:
                os._exit(1)  # the parent is gone; the file is written


def refused(task: Task, error: RecordingError, recorder: Recorder | None) -> TeamRun:
    """A run that was not recorded faithfully: nothing of it is kept but the reason and the cost."""
    left = LeftOut(what="the whole run", reason=str(error), usage=recorder.spent() if recorder is not None else None)
    failure = Failure(site=FailureSite.RUNTIME, message=error.message)
    return nothing(task, Stop.FAILED, failure).model_copy(update={"left_out": (left,)})


def _log_to(path: Path) -> None:
    """What teams print goes to a file, also what libraries write past Python."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
