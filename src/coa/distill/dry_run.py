"""What a distillation will read and which filters will run: `coa.distill.plan(config, traces)`. No model is opened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from coa.benchmarks import load as load_benchmark
from coa.distill.config import DistillConfig
from coa.distill.filters import STAGES
from coa.distill.filters.contamination import contamination
from coa.distill.filters.length import length
from coa.distill.importers.detect import UNKNOWN, survey, trace_files
from coa.distill.roles import load_roles
from coa.models.tokenizer import load_tokenizer
from coa.report import plural
from coa.trajectory import load_profile
from coa.trajectory.formats.tasks import read_tasks
from coa.trajectory.types import Frozen


class DistillPlan(Frozen):
    """What `coa distill` will do with these settings and traces."""

    files: int
    formats: Mapping[str, int]
    """Number of files by the format of what they hold."""
    records: Mapping[str, int]
    """Number of records by format. A record is a run, or a part of one in formats such as OpenTelemetry spans."""
    unreadable: tuple[str, ...]
    """Files in which nothing is a known trace."""
    profile: str
    filters: tuple[str, ...]
    """Stages of the funnel that will run, in order."""
    skipped: Mapping[str, str]
    """Stages that will not run, with the setting that they need."""
    known_tasks: int
    """Tasks with right answers for traces that have none."""
    benchmark_questions: int
    """Questions that are kept out of the data."""
    judge: str | None
    fill: str | None
    """Model that writes what the profile asks for and the traces lack."""
    shard: str | None
    """The part of the tasks whose runs are taken, as i/n."""

    def lines(self) -> list[str]:
        """For people."""
        named = {kind: count for kind, count in self.formats.items() if kind != UNKNOWN}
        found = [f"traces: {plural(self.files, 'file')}"]
        found += [
            f"  {kind}: {plural(self.records[kind], 'record')} in {plural(count, 'file')}"
            for kind, count in named.items()
        ]
        if self.unreadable:
            more = f" and {len(self.unreadable) - 1:,} more" if len(self.unreadable) > 1 else ""
            found.append(f"  no known trace in {self.unreadable[0]}{more}")
        if self.shard:
            found.append(f"shard {self.shard}: runs of the tasks that belong to it, by a hash of the task's id")
        found.append(f"profile: {self.profile}")
        found.append(f"filters: {', '.join(self.filters)}")
        found += [f"  not {stage}: {why}" for stage, why in self.skipped.items()]
        answers = f", {plural(self.known_tasks, 'task')} with known answers" if self.known_tasks else ""
        found.append(f"answers are scored by rules{f', then by {self.judge}' if self.judge else ''}{answers}")
        if self.fill:
            found.append(f"texts that traces lack are written by {self.fill}")
        return found


def plan(config: DistillConfig, traces: Sequence[str | Path]) -> DistillPlan:
    """Look at the traces and settings; whatever would be refused is refused here too. Nothing is converted or written.

    How many runs pass the filters is known only when they have run.
    """
    profile = load_profile(config.profile)
    load_roles(config.roles, profile)
    if config.student is not None:
        load_tokenizer(config.student)
    known = sum(1 for _ in read_tasks(config.tasks)) if config.tasks else 0
    questions = sum(len(load_benchmark(name).tasks) for name in config.decontaminate)
    formats: Counter[str] = Counter()
    records: Counter[str] = Counter()
    unreadable, files = [], 0
    for file in trace_files(sorted({Path(path) for path in traces})):
        files += 1
        found = survey(file)
        records += found
        formats.update(found.keys())
        if not found.total() or set(found) == {UNKNOWN}:
            unreadable.append(str(file))
    skipped = {}
    if config.student is None:
        skipped[length.stage.name] = "it needs the student's tokenizer, --student"
    if not config.decontaminate:
        skipped[contamination.stage.name] = "it needs questions to keep out, --decontaminate"
    return DistillPlan(
        files=files,
        formats=dict(sorted(formats.items())),
        records=dict(sorted(records.items())),
        unreadable=tuple(unreadable),
        profile=profile.name,
        filters=tuple(stage.name for stage in STAGES if stage.name not in skipped),
        skipped=skipped,
        known_tasks=known,
        benchmark_questions=questions,
        judge=config.judge,
        fill=config.fill,
        shard=None if config.shard is None else str(config.shard),
    )
