"""Runs any program once for each task, behind the recording gateway.

The program gets the task through placeholders in its command and the address of the gateway through its environment.
What it does with its model is recorded call by call (`<task>.calls.jsonl`: the task first, then the calls, the outcome
last); what it prints goes to files in `.log/`, and its answer is taken from there. Each program leads a process group
of its own, which is killed as a whole when it ends or its time is up.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from coa.distill.gateway.config import RecordConfig
from coa.distill.gateway.stage import Gateway, record
from coa.distill.run_files import CALLS, run_file
from coa.distill.teaching.results import Done, TeachReport, claim_teaching, unfinished
from coa.errors import RecordingError
from coa.folder import lock
from coa.models.price import Price
from coa.progress import Progress, Silent
from coa.report import plural
from coa.trajectory.types import Stop, Task, Usage

_PLACEHOLDER: Final = re.compile(r"\{(question|id|file)\}")
_TICK_S: Final = 0.05
_GRACE_S: Final = 3.0
"""Between asking a program to end and killing it."""
_READ: Final = 1 << 20
"""How much of the end of a program's output is searched for its answer."""
_LONGEST: Final = 100_000
"""Of an answer, in characters."""
_KEPT: Final = 10_000
"""How much of it is recorded."""


@dataclass(frozen=True, slots=True)
class Program:
    """What to run for each task."""

    command: str
    """Split as a shell would, without a shell. `{question}`, `{id}` and `{file}` are replaced inside the parts."""
    answer_field: str | None = None
    """Field of the JSON object that the program prints; without it the answer is the last line that is not empty."""
    key: str | None = None
    """Sent by OpenAI's clients, instead of the key in the environment."""

    def words(self) -> list[str]:
        """The command, checked before anything is run."""
        try:
            words = shlex.split(self.command)
        except ValueError as error:
            raise RecordingError(f"--command cannot be split into words: {error}", hint="check its quotes") from error
        if not words or not _PLACEHOLDER.search(self.command):
            raise RecordingError(
                f"--command {self.command!r} does not say where the task goes",
                hint="write {question}, {id}, or {file} (a JSON file with the task) into it",
            )
        if not _PLACEHOLDER.search(words[0]) and shutil.which(words[0]) is None:
            raise RecordingError(f"there is no program {words[0]!r}", hint="check the spelling, or give its path")
        return words


def run_command(
    tasks: Iterable[Task],
    program: Program,
    config: RecordConfig,
    out: str | Path,
    *,
    jobs: int = 8,
    time_limit_s: float = 1800.0,
    retry_failed: bool = False,
    price: Price | None = None,
    progress: Progress | None = None,
) -> TeachReport:
    """Run a program once for each task and record its calls. Tasks that have an outcome in `out` are not run again.

    Ctrl-C kills the programs and is raised. What they had recorded is removed; finished runs stay.
    """
    config.check()
    words, progress = program.words(), progress or Silent()
    report = TeachReport(Path(out), price=price)
    with lock(report.out):
        claim_teaching(report.out, command=program.command, answer_field=program.answer_field, url=config.upstream)
        waiting = unfinished(tasks, report, lambda task: _outcome(run_file(report.out, task.id, CALLS)), retry_failed)
        if waiting:
            abandoned: list[Path] = []
            try:
                with record(config, report.out, on_problem=progress.say) as gateway:
                    shift = _Shift(words, program, gateway, report, time_limit_s)
                    try:
                        shift.run(waiting, min(jobs, len(waiting)), progress)
                    finally:
                        abandoned = shift.close()
            finally:
                for path in abandoned:
                    path.unlink(missing_ok=True)
    progress.update(report.done, report.total, report.note())
    report.seconds = time.monotonic() - report.started
    return report


@dataclass(eq=False)
class _Running:
    task: Task
    process: subprocess.Popen[bytes]
    output: Path
    deadline: float
    asked_to_end: float | None = None
    """When its time was up."""


class _Shift:
    def __init__(
        self, words: list[str], program: Program, gateway: Gateway, report: TeachReport, time_limit_s: float
    ) -> None:
        self._words, self._program, self._gateway, self._report = words, program, gateway, report
        self._limit = time_limit_s
        self._running: list[_Running] = []
        self._logs, self._files = report.out / ".log", report.out / ".tasks"

    def run(self, waiting: deque[Task], jobs: int, progress: Progress) -> None:
        for folder in (self._logs, self._files):
            folder.mkdir(exist_ok=True)
        while waiting or self._running:
            while waiting and len(self._running) < jobs:
                self._start(waiting.popleft())
            self._report.running = len(self._running)
            self._report.unfinished = Usage.sum(self._spent(each.task) for each in self._running)
            progress.update(self._report.done, self._report.total, self._report.note())
            time.sleep(_TICK_S)
            for each in list(self._running):
                self._look_after(each)

    def close(self) -> list[Path]:
        """Ends what still runs. Returns the files of the runs that have no outcome."""
        for each in self._running:
            _signal(each.process, signal.SIGKILL)
        for each in self._running:
            each.process.wait()
            self._gateway.end_run(each.task.id)
        left = [run_file(self._report.out, each.task.id, CALLS) for each in self._running]
        self._running = []
        self._report.running, self._report.unfinished = 0, Usage()
        shutil.rmtree(self._files, ignore_errors=True)
        return left

    def _start(self, task: Task) -> None:
        run_file(self._report.out, task.id, CALLS).unlink(missing_ok=True)  # a run that failed or was killed
        self._gateway.follow(task.id)
        described = task.model_dump(mode="json", exclude_defaults=True)
        self._gateway.write("task", task.id, {"task": described})
        file = run_file(self._files, task.id, ".json")
        file.write_bytes(orjson.dumps(described, option=orjson.OPT_INDENT_2))
        values = {"question": task.question_in_context, "id": task.id, "file": str(file.resolve())}
        words = [_PLACEHOLDER.sub(lambda found: values[found[1]], word) for word in self._words]
        environment = self._gateway.environment(task.id)
        if self._program.key is not None:
            environment["OPENAI_API_KEY"] = self._program.key
        output = run_file(self._logs, task.id, ".out")
        try:
            with output.open("wb") as stdout, output.with_suffix(".err").open("wb") as stderr:
                process = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=environment,
                    start_new_session=True,
                )  # fmt: skip
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            self._end(task, Stop.FAILED, None, None, f"the program cannot be run: {reason}", "")
            return
        self._running.append(_Running(task, process, output, time.monotonic() + self._limit))

    def _look_after(self, each: _Running) -> None:
        now, code = time.monotonic(), each.process.poll()
        if code is None:
            if each.asked_to_end is None and now > each.deadline:
                each.asked_to_end = now
                _signal(each.process, signal.SIGTERM)
            elif each.asked_to_end is not None and now > each.asked_to_end + _GRACE_S:
                _signal(each.process, signal.SIGKILL)
            return
        self._running.remove(each)
        _signal(each.process, signal.SIGKILL)  # what it has started and left behind
        self._gateway.end_run(each.task.id)
        printed = _tail(each.output)
        answer, problem = None, None
        if each.asked_to_end is not None:
            stop, problem = Stop.TIME, f"the time limit of {self._limit:g} seconds was reached"
        elif code != 0:
            stop, problem = Stop.FAILED, f"the program ended with {_code(code)}"
        else:
            answer = answer_in(printed, self._program.answer_field)
            stop = Stop.ANSWERED if answer is not None else Stop.FAILED
            field = self._program.answer_field
            if answer is None:
                problem = (
                    f"the program printed no JSON object with a field {field!r}"
                    if field
                    else "the program printed nothing"
                )
        self._end(each.task, stop, code, answer, problem, printed)

    def _end(
        self, task: Task, stop: Stop, code: int | None, answer: str | None, problem: str | None, printed: str
    ) -> None:
        outcome = {"answer": answer, "exit": code, "error": problem, "stdout": printed[-_KEPT:], "stop": stop.value}
        self._gateway.write("outcome", task.id, outcome)
        spent, counted = self._spent(task), self._gateway.follow(task.id)
        if problem and counted.failed:
            problem += f"; {counted.failed} of its {plural(counted.calls, 'model call')} failed: {counted.problem}"
        if stop is Stop.ANSWERED and not spent.model_calls:
            problem = "the program answered without a call of a model; does it use OPENAI_BASE_URL?"
        self._report.add(Done(stop, spent, problem))

    def _spent(self, task: Task) -> Usage:
        counted = self._gateway.follow(task.id)
        return Usage(
            prompt_tokens=counted.prompt_tokens, completion_tokens=counted.completion_tokens, model_calls=counted.calls
        )


def answer_in(printed: str, field: str | None) -> str | None:
    """The answer in what a program printed; None if there is none."""
    if field is None:
        return next((line.strip()[:_LONGEST] for line in reversed(printed.splitlines()) if line.strip()), None)
    for text in _objects(printed):
        with suppress(ValueError, RecursionError):
            value = json.loads(text)
            if isinstance(value, Mapping) and value.get(field) is not None:
                found: Any = value[field]
                return (found if isinstance(found, str) else json.dumps(found, ensure_ascii=False))[:_LONGEST]
    return None


def _objects(printed: str) -> Iterable[str]:
    """Texts that may be the JSON object: all of it, the last lines, and what begins at one of the last braces."""
    yield printed
    lines = printed.splitlines()
    yield from (line for line in reversed(lines[-1000:]) if line.lstrip().startswith("{"))
    starts = [at for at, line in enumerate(lines) if line.startswith("{")]
    for at in reversed(starts[-20:]):
        yield "\n".join(lines[at:])


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _READ))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _outcome(path: Path) -> str | None:
    """How the run in a file ended, as its last line says; None if there is no such file or the run has no outcome."""
    try:
        last: Any = json.loads(_tail(path).rstrip("\n").rpartition("\n")[2])
        if last["event"] != "outcome":
            return None
        return str(last.get("stop") or (Stop.ANSWERED if last.get("error") is None else Stop.FAILED).value)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """To the whole group of a program."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _code(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return f"signal {signal.Signals(-code).name}"
    return f"signal {-code}"
