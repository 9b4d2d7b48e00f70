"""The stage `merge`: the shards of an evaluation become one folder, as if one machine had done all of it.

The folder is an ordinary evaluation: every command reads it, and `coa eval` without --shard goes on with it where runs
are missing. The shards are only read. A report of the joined folder says what that of an undivided evaluation says.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from coa.errors import EvaluationError, FolderError, nothing_at
from coa.evaluate.attempt_store import AttemptStore
from coa.evaluate.attempts import attempt_of
from coa.evaluate.folder import Folder, folders_in, read_notes
from coa.evaluate.report import BenchmarkReport, Evaluation, deciding, make_report, write_report
from coa.folder import CONFIG, replacing, write_atomic
from coa.runtime.sides import Side, identity, parts_of, shard_of, sides_of
from coa.trajectory import JsonlWriter, Trajectory, read

log = logging.getLogger(__name__)


def merge(shards: Sequence[str | Path], out: str | Path) -> Evaluation:
    """Join the folders of the shards of one evaluation in the folder `out`, and report on it. Blocks.

    Shards that are missing or unfinished count as missing attempts, and a notice of the report names them. Folders of
    different evaluations, and two folders of one shard, are refused.
    """
    benchmarks: dict[str, list[Path]] = {}
    if absent := next((path for path in map(Path, shards) if not path.exists()), None):
        raise nothing_at(absent, "folder", EvaluationError)
    for path in (part for given in shards for part in parts_of(Path(given))):
        for folder in folders_in(path):
            if shard_of(folder) is None:
                problem = f"{folder} is not a shard of an evaluation"
                raise EvaluationError(problem, hint="name folders of coa eval --shard I/N")
            benchmarks.setdefault(str(Folder(folder).read_config()["benchmark"]["name"]), []).append(folder)
    if not benchmarks:
        raise EvaluationError("there are no shards to join", hint="name their folders: coa eval merge e-1 e-2 --out e")
    places = {name: Path(out) if len(benchmarks) == 1 else Path(out) / name for name in benchmarks}
    return Evaluation([_merged(_one_side(folders), Folder(places[name])) for name, folders in benchmarks.items()])


def _one_side(folders: Sequence[Path]) -> Side:
    first, *others = sides_of(folders)
    if not others:
        return first
    one, two = (identity(Folder(side.paths[0]).read_config()) for side in (first, others[0]))
    name = next(name for name in {**one, **two} if one.get(name) != two.get(name))
    raise EvaluationError(
        f"{first.paths[0]} and {others[0].paths[0]} are shards of different evaluations: {name} is {one.get(name)!r} "
        f"in one and {two.get(name)!r} in the other",
        hint="join the shards of one evaluation at a time",
    )


def _merged(side: Side, out: Folder) -> BenchmarkReport:
    shards = [Folder(path) for path in side.paths]
    if out.path.resolve() in {folder.path.resolve() for folder in shards}:
        raise FolderError(f"{out.path} is one of the shards", hint="choose another folder with --out")
    config = _whole([folder.read_config() for folder in shards], side.missing_note())
    scorer, samples = deciding(config), int(config["samples"])
    with out.held(), AttemptStore() as attempts:
        _refuse_other(out, config, shards)
        with replacing(out.trajectories) as part, JsonlWriter(part) as writer:
            for run in _runs(shards):
                writer.write(run)
                if scorer in run.scores and run.sample < samples:
                    attempts.add(attempt_of(run, scorer))
        if asides := [folder.aside for folder in shards if folder.aside.is_file()]:
            write_atomic(out.aside, b"".join(aside.read_bytes() for aside in asides))
        data = orjson.dumps(config, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        write_atomic(out.config, data)
        report = make_report(attempts, config, retried=out.retried())
        write_report(out, report)
    return BenchmarkReport(report, out.path)


def _whole(configs: Sequence[dict[str, Any]], missing: str) -> dict[str, Any]:
    """The config of the evaluation that the shards are parts of."""
    first = configs[0]
    if len({orjson.dumps(config["versions"]) for config in configs}) > 1:
        log.warning("the shards were evaluated by different versions of coa; the report names the first")
    benchmark = {
        **first["benchmark"],
        "tasks": first["shard"]["tasks_of_all"],
        "sample_tests_only": sum(config["benchmark"].get("sample_tests_only") or 0 for config in configs),
    }
    notices = [*(first.get("notices") or ()), *([f"This report is not complete: {missing}."] if missing else [])]
    return {**first, "benchmark": benchmark, "shard": None, **({"notices": notices} if notices else {})}


def _runs(shards: Sequence[Folder]) -> Iterator[Trajectory]:
    """With what is only in the journals of shards that were stopped."""
    for folder in shards:
        notes = read_notes(folder)
        for run in read(folder.trajectories) if folder.trajectories.is_file() else ():
            yield notes.applied(run) if notes else run


def _refuse_other(out: Folder, config: Mapping[str, Any], shards: Sequence[Folder]) -> None:
    """Refuse a folder that holds anything but an earlier join of the same shards: it would be lost."""
    if not out.trajectories.is_file() and not out.config.is_file():
        return
    elsewhere = "choose another folder with --out"
    if not out.is_evaluation or identity(out.read_config()) != identity(config) or out.read_config().get("shard"):
        raise FolderError(f"{out.path / CONFIG} is of another run", hint=elsewhere)
    here = {run.key for run in _runs(shards)}
    if any(run.key not in here for run in (read(out.trajectories) if out.trajectories.is_file() else ())):
        raise FolderError(f"{out.path} holds runs that are not in the shards", hint=elsewhere)
