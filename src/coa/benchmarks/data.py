"""The tasks of a benchmark: from a local file or from the hub, or an error that says how to get them."""

from __future__ import annotations

import csv
import hashlib
import logging
import os
import sys
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import chain
from pathlib import Path
from typing import Any, Final

import orjson

from coa.benchmarks.registry import Benchmark, Hub, benchmark_named, benchmarks, find_benchmark, names_of, plain_name
from coa.benchmarks.row_shapes import as_task_tests
from coa.errors import EvaluationError, ScoringError, StoreError, nothing_at
from coa.folder import replacing
from coa.report import plural
from coa.scoring.code.full_tests import SOURCE, find_tests
from coa.scoring.code.problem import problem_of
from coa.shard import Shard, in_shard
from coa.trajectory import CodeTests, Task
from coa.trajectory.formats.hub import Choice, cached_files, hub_files
from coa.trajectory.formats.rows import Row, read_rows
from coa.trajectory.formats.tasks import from_task, tasks_of

log = logging.getLogger(__name__)
ENDINGS: Final = (".jsonl", ".json", ".parquet", ".csv")
_DOWNLOAD_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Loaded:
    """The tasks of a benchmark, and what identifies them."""

    benchmark: Benchmark
    tasks: list[Task]
    files: tuple[str, ...]
    """Names of the files; empty where a program made the tasks."""
    sha256: str
    """Hash of all tasks as they are run, whatever the limit: the same rows in another file have the same hash."""
    whole: int
    """Number of tasks of all shards."""


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "coa" / "benchmarks"


def load(
    name: str,
    data: Path | None = None,
    *,
    limit: int | None = None,
    tests: Path | None = None,
    shard: Shard | None = None,
) -> Loaded:
    """The tasks of a benchmark by its name, or of a file. A file with the name of a benchmark is that benchmark's.

    `tests` is a release file of LiveCodeBench, or a folder of them; its tests take the place of those in the tasks.
    `shard` is a part of the tasks that `limit` leaves.
    """
    path = Path(name)
    if path.is_file():
        # The user's rows; each is scored by the rule that fits it.
        unnamed = Benchmark(path.stem, f"tasks of {path.name}", None, "web", "auto")
        benchmark, files = find_benchmark(path.stem) or unnamed, [path]
    elif path.suffix in ENDINGS:
        raise nothing_at(name, "file")
    else:
        benchmark = benchmark_named(name)
        files = [] if benchmark.tasks is not None else found(benchmark, data) or _fetched(benchmark)
    if benchmark.tasks is not None and not files:
        tasks = list(benchmark.tasks())
    else:
        tasks = list(tasks_of(_shaped(benchmark, chain.from_iterable(map(_rows, files))), source=benchmark.name))
    if not tasks:
        raise StoreError(f"{', '.join(map(str, files)) or benchmark.name} holds no task")
    if tests is not None:
        tasks = with_full_tests(tasks, tests)
        files = [*files, tests]
    named, chosen = tuple(file.name for file in files), tasks[:limit]
    return Loaded(benchmark, in_shard(chosen, shard), named, fingerprint(tasks), len(chosen))


def with_full_tests(tasks: list[Task], place: Path) -> list[Task]:
    """The tasks with the tests that the release files hold for their question ids. Tasks without tests stay."""
    programs = {question_id(task) for task in tasks if task.tests is not None}
    if not programs:
        return tasks
    found = find_tests(place, programs)
    if not found:
        hint = f"give {SOURCE}, or a folder with them"
        raise StoreError(f"--tests {place} holds no tests of any of these {plural(len(programs), 'task')}", hint=hint)
    if len(found) < len(programs):
        missing = f"{len(programs) - len(found):,} of {plural(len(programs), 'task')}"
        log.warning("--tests %s holds no tests of %s; they keep those that they have", place, missing)
    full = {name: CodeTests.model_validate(as_task_tests(problem)) for name, problem in found.items()}
    return [
        task.model_copy(update={"tests": full[question_id(task)]})
        if task.tests is not None and question_id(task) in full
        else task
        for task in tasks
    ]


def question_id(task: Task) -> str:
    return str(task.meta.get("question_id") or task.id)


def samples_only(tasks: Iterable[Task]) -> int:
    """Number of tasks whose statements print all their tests."""
    count = 0
    for task in tasks:
        try:
            problem = problem_of(task)
        except ScoringError:
            continue  # its tests cannot be read, and it will be unscored
        count += problem is not None and problem.samples_only
    return count


def fingerprint(tasks: Iterable[Task]) -> str:
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(orjson.dumps(from_task(task), option=orjson.OPT_SORT_KEYS) + b"\n")
    return digest.hexdigest()


def found(benchmark: Benchmark, data: Path | None = None, environment: Mapping[str, str] = os.environ) -> list[Path]:
    """Its files in `--data`, `$COA_DATA`, coa's cache or the hub's cache. Nothing is downloaded."""
    if data is not None and not data.is_dir():
        raise nothing_at(data, "folder", EvaluationError)
    for folder in _folders(data, environment):
        if files := _in_folder(benchmark, folder):
            return files
    return cached_files(benchmark.hub.id, _wanted(benchmark.hub)) if benchmark.hub is not None else []


def listing(data: Path | None = None) -> list[dict[str, Any]]:
    """Every benchmark, where it comes from, and whether its data are on this machine."""
    rows = []
    for benchmark in benchmarks():
        files = [] if benchmark.tasks is not None else found(benchmark, data)
        rows.append(
            {
                "name": benchmark.name,
                "about": benchmark.about,
                "size": benchmark.size,
                "metric": benchmark.metric,
                "scorer": benchmark.scorer,
                "profile": benchmark.profile,
                "source": benchmark.hub.id if benchmark.hub else benchmark.url or "made by a program",
                "gated": benchmark.hub.gated if benchmark.hub else False,
                "samples": benchmark.protocol.samples,
                "here": benchmark.tasks is not None or bool(files),
                "files": [str(file) for file in files],
                "note": benchmark.note,
            }
        )
    return rows


def missing(benchmark: Benchmark, reason: str = "") -> EvaluationError:
    """An error that says what to download, and where to put it."""
    place = cache_folder()
    put = f"put {benchmark.name}.jsonl, .json, .parquet or .csv ({benchmark.columns}) into {place}, $COA_DATA or --data"
    hints = [put]
    if benchmark.hub is not None:
        terms = f"accept the terms at huggingface.co/datasets/{benchmark.hub.id}, hf auth login, and "
        hints.append(
            f"or {terms if benchmark.hub.gated else ''}hf download {benchmark.hub.id} --repo-type dataset "
            f"--include '{benchmark.hub.files[0]}' --local-dir {place / benchmark.name}"
        )
    if benchmark.url is not None:
        hints.append(f"or curl -L -o {place / benchmark.name}.csv {benchmark.url}")
    problem = f"the data of {benchmark.name} are not on this machine" + (f": {reason}" if reason else "")
    return EvaluationError(problem, hint="\n        ".join(hints))


def _folders(data: Path | None, environment: Mapping[str, str]) -> Iterator[Path]:
    if data is not None:
        yield data
    if named := environment.get("COA_DATA"):
        yield Path(named)
    yield cache_folder(environment)


def _in_folder(benchmark: Benchmark, folder: Path) -> list[Path]:
    """A file with one of its names, or a folder with one of its names that holds the hub's files."""
    if not folder.is_dir():
        return []
    names = names_of(benchmark)
    entries = sorted(folder.iterdir())
    for ending in ENDINGS:
        for entry in entries:
            if entry.suffix == ending and plain_name(entry.stem) in names and entry.is_file():
                return [entry]
    for entry in entries:
        if entry.is_dir() and plain_name(entry.name) in names:
            inside = sorted(str(file.relative_to(entry)) for file in entry.rglob("*") if file.suffix in ENDINGS)
            wanted = _wanted(benchmark.hub)(inside) if benchmark.hub is not None else []
            if wanted or len(inside) == 1:
                return [entry / file for file in wanted or inside]
    return []


def _wanted(hub: Hub) -> Choice:
    def choose(listed: list[str]) -> list[str]:
        for pattern in hub.files:
            if chosen := [path for path in listed if fnmatch(path, pattern) and path.endswith(ENDINGS)]:
                return chosen
        return []

    return choose


def _fetched(benchmark: Benchmark) -> list[Path]:
    if benchmark.hub is not None:
        try:
            files = hub_files(benchmark.hub.id, _wanted(benchmark.hub))
        except StoreError as error:
            raise missing(benchmark, error.message) from error
        if not files:
            raise missing(benchmark, f"{benchmark.hub.id} has no file {' or '.join(benchmark.hub.files)}")
        return files
    if benchmark.url is None:
        raise missing(benchmark)
    place = cache_folder() / f"{benchmark.name}{Path(benchmark.url).suffix}"
    try:
        with (
            replacing(place) as part,
            urllib.request.urlopen(benchmark.url, timeout=_DOWNLOAD_S) as answer,
            part.open("wb") as file,
        ):
            while block := answer.read(1 << 20):
                file.write(block)
    except (OSError, ValueError) as error:
        raise missing(benchmark, f"{type(error).__name__}: {error}") from error
    return [place]


def _shaped(benchmark: Benchmark, rows: Iterable[Row]) -> Iterator[Row]:
    for number, row in enumerate(rows, start=1):
        try:
            shaped = benchmark.read(row)
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{benchmark.name}, row {number} cannot be read: {error}") from error
        if shaped is not None:
            yield shaped


def _rows(path: Path) -> Iterator[Row]:
    if path.suffix != ".csv":
        yield from read_rows(path)
        return
    csv.field_size_limit(min(sys.maxsize, 1 << 31))
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            row: dict[str, Any]
            for row in csv.DictReader(file):
                yield {key: value for key, value in row.items() if key}
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise StoreError(f"{path} cannot be read as CSV: {error}") from error
