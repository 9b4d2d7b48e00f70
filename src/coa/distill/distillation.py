"""`distill`: the traces of a team in, training data and a report in a folder out.

This is the whole of `coa distill` as one call. It opens what the settings name (profile, tasks, judge, writing model,
tokenizer, benchmarks), sends everything that the traces hold through the `Distillery`, and writes the report.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

from coa.benchmarks import load as load_benchmark
from coa.blocking import run_blocking
from coa.distill.config import DistillConfig
from coa.distill.fill import ModelWriter, TextCache
from coa.distill.filters.contamination import BenchmarkQuestions
from coa.distill.importers.detect import Traces
from coa.distill.known_tasks import KnownTasks
from coa.distill.pipeline import Distillery
from coa.distill.report import DistillReport, write_report
from coa.distill.roles import load_roles
from coa.errors import StoreError
from coa.folder import claim, lock
from coa.models.opening import open_model
from coa.models.tokenizer import load_tokenizer
from coa.progress import Progress, Silent, part
from coa.scoring.opening import open_judge, open_scorer
from coa.trajectory import load_profile
from coa.trajectory.formats.tasks import read_tasks
from coa.version import __version__


def distill(
    config: DistillConfig, traces: Sequence[str | Path], out: str | Path, *, progress: Progress | None = None
) -> DistillReport:
    """Import traces of a team, convert them to trajectories of one model, and filter them.

    The same inputs and settings give the same files, in whatever order the inputs come. Replies of judges and writing
    models are cached in `out`.

    Args:
        config: Profile, filters and their thresholds.
        traces: Files or folders in any format that coa reads.
        out: Folder for the trajectories and the funnel report.
        progress: Shows how far the work is.

    Returns:
        The counts of each stage. `kept == 0` is not an error; `advice` then says what to change.

    Raises:
        CoaError: A setting is wrong, the traces cannot be found, or `out` is in use.
    """
    return run_blocking(_distill(config, [Path(path) for path in traces], Path(out), progress or Silent()))


async def _distill(config: DistillConfig, traces: list[Path], out: Path, progress: Progress) -> DistillReport:
    _check_out(out, traces)
    profile = load_profile(config.profile)
    roles = load_roles(config.roles, profile)
    tokenizer = load_tokenizer(config.student) if config.student else None
    tasks = KnownTasks(read_tasks(config.tasks) if config.tasks else ())
    benchmarks = BenchmarkQuestions(config.contamination.words) if config.decontaminate else None
    for name in config.decontaminate:
        assert benchmarks is not None
        benchmarks.add(task.question for task in load_benchmark(name).tasks)
    # Sorted: the order in which paths were given must not show in the report.
    items = Traces(sorted(set(traces)))
    async with AsyncExitStack() as stack:
        stack.enter_context(lock(out))
        _claim(out, {"config": config.filter_settings()}, write=False)

        judge = await stack.enter_async_context(open_judge(config))
        scorer = await stack.enter_async_context(open_scorer("auto", judge, verdicts=out / "verdicts.sqlite"))
        writer: ModelWriter | None = None
        if config.fill is not None:
            with part(progress, f"opening {config.fill}"):
                model = await open_model(config.fill, config.fill_name)
            stack.push_async_callback(model.close)
            writer = ModelWriter(model, stack.enter_context(closing(TextCache(out / "filled.sqlite"))))
        distillery = Distillery(
            profile, config, scorer, roles=roles, tasks=tasks, writer=writer, tokenizer=tokenizer,
            benchmarks=benchmarks, progress=progress, judged=judge is not None,
        )  # fmt: skip
        found = await distillery.run(items, out)
        settings = {
            "profile": profile.name,
            "scorer": f"rules, then {judge.name}" if judge else "rules",
            "fill": writer.name if writer else None,
            "student": config.student,
            "benchmarks": sorted(Path(name).name for name in config.decontaminate),
            "benchmark_questions": benchmarks.questions if benchmarks else 0,
            "config": config.filter_settings(),
        }
        _claim(out, {"coa": __version__, **settings})
        # What was not checked, so that nobody takes it for granted.
        notes = []
        if config.student is None:
            notes.append("Length was not measured: no --student tokenizer was given.")
        if not config.decontaminate:
            notes.append("Overlap with benchmarks was not checked: no --decontaminate file was given.")
        if config.shard is not None:
            notes.append(f"This is the shard {config.shard}: near-duplicates in other shards were not looked for.")
        return write_report(out, found, settings, notes, sorted(set(traces)), config.tasks)


def _claim(out: Path, record: dict[str, Any], *, write: bool = True) -> None:
    """Refuse a folder of another kind of run, or of another shard, whose data would be lost. Other settings may change:
    the data are made anew each time."""
    claim(
        out, "distill", record, settings="config", compared=lambda side: {"shard": side.get("shard")}, write=write,
        renew=True, hints={"shard": "give each shard a separate --out"},
    )  # fmt: skip


def _check_out(out: Path, traces: Sequence[Path]) -> None:
    if out.exists() and not out.is_dir():
        raise StoreError(f"{out} is a file", hint="name a folder with --out")
    for path in traces:
        if path.is_dir() and out.resolve().is_relative_to(path.resolve()):
            problem = f"{out} lies in {path}: the next run would read its own output as traces"
            raise StoreError(problem, hint="choose a folder outside the traces with --out")
