"""The stage: read runs of any origin, show each to the scanners, count what they find, and write it down.

Runs are read one after another and forgotten, so memory does not grow with their number. What is kept are counts, the
first findings of each scanner, and, for scanners that compare the attempts at a task, a few bytes of each attempt in
the current file.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

import orjson

from coa.blocking import run_blocking
from coa.errors import ConfigError, ProfileError, StoreError
from coa.folder import lock, replacing, write_atomic
from coa.progress import Progress, Silent, part
from coa.report import plural
from coa.scan.config import QUESTION, ScanConfig
from coa.scan.finding import Finding, GroupScanner, Note, Scanner, ScannerFailure
from coa.scan.judging import NAME as JUDGE
from coa.scan.judging import Judge, JudgeFailed
from coa.scan.opening import open_scanners
from coa.scan.reading import FoundRun, Problem, RunSource
from coa.scan.report import MOST_PROBLEMS, JudgeFigures, ScannerSummary, ScanReport
from coa.scan.running import as_note, finding, guarded, placed, scan_run
from coa.scoring.opening import open_judge
from coa.trajectory import Profile, profile_of
from coa.trajectory.identity import run_id

FINDINGS: Final = "findings.jsonl"
_MOST_TASKS: Final = 10_000
"""Number of tasks of a file whose attempts are remembered at a time."""
_MOST_ATTEMPTS: Final = 1_000
"""Number of attempts at one task that are compared with each other."""
_AHEAD: Final = 4
"""How many runs are read ahead for each question to the judge that is under way."""


def scan(
    paths: str | Path | Sequence[str | Path],
    config: ScanConfig | None = None,
    *,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> ScanReport:
    """Look for problems in many runs: leaked answers, loops, failing tools, refusals and more. Blocks.

    Args:
        paths: Files and folders of trajectories, or recorded teams.
        config: Scanners to use and, optionally, a judge.
        out: Folder for findings.jsonl (every finding) and report.json (the counts).
        progress: Shows how far the work is.

    Returns:
        Counts and the first findings of each scanner. Records that could not be read are listed in `problems`.

    Raises:
        CoaError: A path or a scanner does not exist, or `out` is in use.
    """
    config, progress = config or ScanConfig(), progress or Silent()
    listed = [paths] if isinstance(paths, str | Path) else list(paths)
    scanners = _scanners(config)
    source = RunSource(listed, config.profile)
    with ExitStack() as stack:
        file = stack.enter_context(_findings_file(Path(out))) if out is not None else None
        collector = _Collector(scanners, config, source, file, progress)
        with part(progress, "scanning"):
            if config.judge is not None:
                run_blocking(_scan_judged(source, collector, config))
            else:
                for item in source:
                    collector.take(item)
            collector.end_file()
        report = collector.report(Path(out) if out is not None else None)
        if not report.runs:
            raise _nothing(listed, report)
        if out is not None:
            options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
            write_atomic(Path(out) / "report.json", orjson.dumps(report.data, option=options))
    return report


def _scanners(config: ScanConfig) -> list[Scanner]:
    if JUDGE in config.scanners and config.judge is None:
        raise ConfigError("the scanner judge needs a model to ask", hint="give it: --judge URL")
    if config.question != QUESTION and config.judge is None:
        raise ConfigError("there is a question to the judge, and no judge", hint="name the model to ask: --judge URL")
    names = [name for name in config.scanners if name != JUDGE]
    return open_scanners(names) if names or not config.scanners else []


@contextmanager
def _findings_file(out: Path) -> Iterator[BinaryIO]:
    with lock(out), replacing(out / FINDINGS) as path, path.open("wb") as file:
        yield file


def _nothing(paths: Sequence[str | Path], report: ScanReport) -> StoreError:
    named = ", ".join(str(path) for path in paths)
    if report.problems:
        first = report.problems[0]
        place = "" if first.file in first.message or first.file == named else f"{first.file}: "
        return StoreError(f"no run can be read at {named}: {place}{first.message}")
    return StoreError(f"there is no run at {named}", hint="name a folder or a file with runs, such as runs/")


async def _scan_judged(source: RunSource, collector: _Collector, config: ScanConfig) -> None:
    """Read ahead a little, so that the judge always has work, and take its verdicts in the order of the runs."""
    async with open_judge(config) as model:
        assert model is not None
        judge = Judge(model, config.question, concurrency=config.concurrency)
        waiting: deque[tuple[FoundRun, asyncio.Task[list[Note]]]] = deque()

        async def take_verdict() -> None:
            run, task = waiting.popleft()
            try:
                collector.judged(run, await task)
            except JudgeFailed as error:
                collector.fail(ScannerFailure(JUDGE, str(error)))
            collector.judge = judge.figures

        items = iter(source)
        try:
            while (item := await asyncio.to_thread(next, items, None)) is not None:
                collector.take(item)
                if isinstance(item, FoundRun):
                    waiting.append((item, asyncio.create_task(judge.notes(item.trajectory))))
                while len(waiting) >= _AHEAD * config.concurrency:
                    await take_verdict()
            while waiting:
                await take_verdict()
        finally:
            for _, task in waiting:
                task.cancel()
            await asyncio.gather(*(task for _, task in waiting), return_exceptions=True)


class _Collector:
    """Counts findings as they come, and hands them on to the file."""

    def __init__(
        self, scanners: Sequence[Scanner], config: ScanConfig, source: RunSource, file: BinaryIO | None,
        progress: Progress,
    ) -> None:  # fmt: skip
        self._single = [scanner for scanner in scanners if not isinstance(scanner, GroupScanner)]
        self._grouped = [scanner for scanner in scanners if isinstance(scanner, GroupScanner)]
        self._config, self._source, self._file, self._progress = config, source, file, progress
        self._summaries = {scanner.name: ScannerSummary(scanner.name, scanner.about) for scanner in scanners}
        if config.judge is not None:
            self._summaries[JUDGE] = ScannerSummary(JUDGE, config.question)
        self._runs = self._found = 0
        self._problems: list[Problem] = []
        self._problem_count = 0
        self._current: Path | None = None
        self._tasks: OrderedDict[tuple[str, int], _Attempts] = OrderedDict()
        self.judge: JudgeFigures | None = None

    def take(self, item: FoundRun | Problem) -> None:
        if isinstance(item, Problem):
            self._note(item)
            return
        if item.file != self._current:
            self.end_file()
            self._current = item.file
        self._runs += 1
        try:
            profile = profile_of(item.trajectory)
        except ProfileError as error:
            self._note(Problem(str(item.file), f"record {item.number + 1}: {error.message}"))
            return
        failures: list[ScannerFailure] = []
        place = {"run": item.id, "file": str(item.file)}
        self._add(scan_run(item.trajectory, self._single, profile=profile, failures=failures, **place))
        self._remember(item, profile, failures)
        for failure in failures:
            self.fail(failure)
        note = f"file {self._source.files_begun} of {self._source.files}, {plural(self._found, 'finding')}"
        self._progress.update(self._runs, note=note)

    def judged(self, run: FoundRun, notes: Sequence[Note]) -> None:
        self._add([finding(note, JUDGE, run.trajectory, run.id, str(run.file)) for note in notes])

    def fail(self, failure: ScannerFailure) -> None:
        self._summaries[failure.scanner].fail(failure.message)

    def end_file(self) -> None:
        while self._tasks:
            self._end_task()

    def report(self, out: Path | None) -> ScanReport:
        return ScanReport(
            self._runs, self._summaries, tuple(self._problems), self._problem_count, judge=self.judge, out=out
        )

    def _note(self, problem: Problem) -> None:
        self._problem_count += 1
        if len(self._problems) < MOST_PROBLEMS:
            self._problems.append(problem)

    def _add(self, findings: Sequence[Finding]) -> None:
        """All findings of one run, or of several runs by one scanner."""
        for name, run in {(one.scanner, one.run) for one in findings}:
            self._summaries[name].runs += bool(run)
        for one in findings:
            self._found += 1
            self._summaries[one.scanner].add(one, self._config.examples)
            if self._file is not None:
                self._file.write(one.model_dump_json().encode() + b"\n")

    def _remember(self, run: FoundRun, profile: Profile, failures: list[ScannerFailure]) -> None:
        task = run.trajectory.task
        key = task.id, hash(task.question_in_context)  # an id may be a default
        for scanner in self._grouped:
            brief = guarded(scanner.name, partial(scanner.brief, run.trajectory, profile), failures)
            if brief is not None:
                attempts = self._tasks.setdefault(key, {}).setdefault(scanner.name, [])
                attempts.append((run.number, brief))
                self._tasks.move_to_end(key, last=len(attempts) < _MOST_ATTEMPTS)
                if len(attempts) >= _MOST_ATTEMPTS:
                    self._end_task()
        if len(self._tasks) > _MOST_TASKS:
            self._end_task()

    def _end_task(self) -> None:
        """Show the attempts at the task that was seen longest ago to the scanners that compare them."""
        assert self._current is not None
        (task, _), attempts = self._tasks.popitem(last=False)
        failures: list[ScannerFailure] = []
        for scanner in self._grouped:
            remembered = attempts.get(scanner.name, [])
            briefs = [brief for _, brief in remembered]
            found = guarded(scanner.name, partial(_group_notes, scanner, briefs), failures)
            place = self._current
            self._add([
                placed(note, scanner.name, task, run_id(place, remembered[at][0]), str(place))
                for at, note in found or ()
            ])  # fmt: skip
        for failure in failures:
            self.fail(failure)


def _group_notes(scanner: GroupScanner, briefs: Sequence[Any]) -> list[tuple[int, Note]]:
    return [(index, as_note(note)) for index, note in scanner.scan_group(briefs) if 0 <= index < len(briefs)]


_Attempts = dict[str, list[tuple[int, Any]]]
"""By scanner: the number of each attempt in the current file, and what the scanner remembers of it."""
