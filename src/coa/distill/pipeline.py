"""Traces in, training data out: convert, fill, filter, judge, and write what is kept, in memory that does not grow.

The same inputs and settings give the same bytes, in whatever order the inputs come. What costs money (verdicts, filled
texts) is cached in the output folder, so a run that was stopped is paid for once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from coa.distill.config import DistillConfig
from coa.distill.convert import convert
from coa.distill.fill import FILLED, Writer, fill
from coa.distill.filters import FILTERS
from coa.distill.filters.base import Dropped, FilterInput
from coa.distill.filters.contamination import BenchmarkQuestions
from coa.distill.filters.enrichment import copies
from coa.distill.filters.quality import SCORE
from coa.distill.filters.questions import DUPLICATES
from coa.distill.filters.rules import MISFIT, broken_rules
from coa.distill.funnel import Funnel
from coa.distill.importers.detect import Traces
from coa.distill.known_tasks import KnownTasks
from coa.distill.roles import RoleMap
from coa.distill.spool import Spool
from coa.distill.team_run import Skipped, TeamRun, decisions_in
from coa.folder import beside, replacing
from coa.progress import Progress, Silent, part, time_left
from coa.report import plural
from coa.scoring import Scorer, score_trajectory
from coa.trajectory import JsonlWriter, ParquetWriter, Profile, Tokenizer, Trajectory
from coa.trajectory.profile import with_profile
from coa.trajectory.types import FrozenDict

Item = TeamRun | Trajectory | Skipped
_GROUP_ROWS: Final = 100
"""Only rows wait in memory, so this is small."""


@dataclass
class Distillery:
    """What a distillation works with. `run` may be called once."""

    profile: Profile
    config: DistillConfig
    scorer: Scorer
    roles: RoleMap = field(default_factory=RoleMap)
    tasks: KnownTasks = field(default_factory=KnownTasks)
    writer: Writer | None = None
    tokenizer: Tokenizer | None = None
    benchmarks: BenchmarkQuestions | None = None
    progress: Progress = field(default_factory=Silent)
    judged: bool = False
    """Whether the scorer asks a judge."""

    def __post_init__(self) -> None:
        self._given = FilterInput(self.profile, self.config, self.tokenizer, self.benchmarks)

    async def run(self, items: Iterable[Item], out: Path) -> Funnel:
        found = Funnel()
        out.mkdir(parents=True, exist_ok=True)
        with Spool(beside(out / "spool.sqlite")) as spool:
            with part(self.progress, "files read" if _file_count(items) else "runs read", _file_count(items)):
                await self._filter(items, found, spool)
            with part(self.progress, "looking for duplicates and writing"):
                for trajectory, dropped in spool.choose(self.config.duplicates):
                    found.drop(DUPLICATES, dropped, trajectory)
                self._write(spool, out, found)
        return found

    async def _filter(self, items: Iterable[Item], found: Funnel, spool: Spool) -> None:
        running: set[asyncio.Task[None]] = set()
        shard = self.config.shard
        began = time.monotonic()

        def report() -> None:
            spent, total = time.monotonic() - began, _file_count(items)
            done = items.files_read if isinstance(items, Traces) and total else found.entered
            left = time_left((total - done) * spent / done) if total and done else ""
            note = [f"{plural(found.entered, 'run')} read, {found.note()}"]
            note += [f"{len(running)} being judged or filled"] if self.writer or self.judged else []
            note += [f"{found.entered / max(spent, 1e-9):.0f} runs/s", left]
            self.progress.update(done, total, ", ".join(filter(None, note)))

        try:
            for item in items:
                if isinstance(item, Skipped):
                    found.skip(item)
                    continue
                if shard is not None and not shard.holds(self.tasks.find(item.task).id):
                    continue
                trajectory = self._trajectory(item)
                decisions = decisions_in(item) if isinstance(item, TeamRun) else ()
                found.read(trajectory, converted=isinstance(item, TeamRun), decisions=decisions)
                running.add(asyncio.create_task(self._one(trajectory, found, spool)))
                if len(running) >= self.config.concurrency:
                    done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()
                report()
            while running:
                report()
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            report()
        except BaseException:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            raise

    def _trajectory(self, item: TeamRun | Trajectory) -> Trajectory:
        """The item as a trajectory of the chosen profile, with the right answer if it is known."""
        if isinstance(item, TeamRun):
            known = self.tasks.find(item.task)
            return convert(item.model_copy(update={"task": known}), self.profile, self.roles)
        return with_profile(item, self.profile).model_copy(update={"task": self.tasks.find(item.task)})

    async def _one(self, trajectory: Trajectory, found: Funnel, spool: Spool) -> None:
        if self.writer is not None:
            trajectory = await fill(trajectory, self.profile, self.writer)
        judged = False
        for each in FILTERS:
            if each.needs_score and not judged:
                trajectory, judged = await score_trajectory(trajectory, self.scorer, name=SCORE), True
            said = each(trajectory, self._given)
            if isinstance(said, Dropped):
                misfit = any(one.rule in MISFIT for one in broken_rules(trajectory, self.profile))
                found.drop(each.stage, said, trajectory, misfit=misfit)
                return
            trajectory = said or trajectory
        dropped = spool.add(trajectory, copies(trajectory, self.profile, self.config))
        if dropped is not None:
            found.drop(DUPLICATES, dropped, trajectory)

    def _write(self, spool: Spool, out: Path, found: Funnel) -> None:
        """Both files are written under temporary names and renamed at the end."""
        with (
            replacing(out / "trajectories.jsonl") as part,
            ParquetWriter(out / "trajectories.parquet", group_rows=_GROUP_ROWS) as parquet,
            JsonlWriter(part) as jsonl,
        ):
            for trajectory, times in spool.chosen():
                found.kept += 1
                found.corrected += times > 1
                found.shortened += bool(trajectory.meta.get("shortened"))
                found.filled += sum(FILLED in step.meta for step in trajectory.steps)
                for copy in range(times):
                    meta = FrozenDict({**trajectory.meta, "copy": copy})
                    row = trajectory.model_copy(update={"meta": meta}) if copy else trajectory
                    parquet.write(row)
                    jsonl.write(row)
                    found.rows += 1


def _file_count(items: Iterable[Item]) -> int | None:
    """Number of files; None where it is not known, and for a single file, which says nothing about its runs."""
    return len(items.files) if isinstance(items, Traces) and len(items.files) > 1 else None
