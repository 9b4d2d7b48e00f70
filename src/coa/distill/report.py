"""What a distillation reports: `DistillReport` for callers; report.json, a page and the dataset card for people."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coa.distill.funnel import Funnel, StageCount
from coa.distill.importers.detect import FORMATS
from coa.distill.team_run import Skipped
from coa.folder import write_atomic
from coa.report import details, funnel, page, paragraph, plural, section, table


@dataclass(frozen=True, slots=True)
class DistillReport:
    """Result of a distillation: the counts of each stage and the files. `report.json` has the same, with examples."""

    out: Path
    read: int
    """Runs and trajectories that the traces held."""
    kept: int
    """Trajectories that passed every filter."""
    rows: int
    """Rows that were written: a trajectory that corrected itself is written several times."""
    stages: tuple[StageCount, ...]
    unreadable: int
    """Files and places in files that hold no trace or a damaged one."""
    unreadable_places: tuple[Skipped, ...]
    """The first thousand of these places."""
    notes: tuple[str, ...]
    """What could not be checked, and why."""
    hints: tuple[str, ...]
    """What to change, for the reasons that dropped most trajectories."""
    failed_handovers: int = 0
    """Hand-overs from agent to agent that failed and are left out of the trajectories."""
    sureness: str = ""
    """How much of who is who, and who asked whom, is inferred; empty where the traces state it all."""
    offer: str = ""
    """Commands that make a profile for this team, where the chosen one drops most runs because it does not fit."""

    @property
    def reasons(self) -> dict[str, int]:
        """All dropped trajectories by reason."""
        return {name: count for stage in self.stages for name, count in stage.reasons.items()}

    @property
    def trajectories(self) -> Path:
        return self.out / "trajectories.parquet"

    @property
    def json(self) -> Path:
        return self.out / "report.json"

    @property
    def html(self) -> Path:
        return self.out / "report.html"

    @property
    def advice(self) -> str:
        """What to do where nothing was kept."""
        if not self.read:
            return f"give files of a known format: {', '.join(known.description for known in FORMATS)}"
        found = [
            f"{stage.dropped:,} by {stage.name} ({', '.join(f'{n:,} {why}' for why, n in stage.reasons.items())})"
            for stage in self.stages
            if stage.dropped
        ]
        lines = [f"Dropped: {', '.join(found)}.", *self.hints, f"{self.html} shows examples of each."]
        return " ".join(lines) + (f"\n{self.offer}" if self.offer else "")


def write_report(
    out: Path, found: Funnel, settings: dict[str, Any], notes: Sequence[str], traces: Sequence[Path] = (),
    tasks: Path | None = None,
) -> DistillReport:  # fmt: skip
    """The files name no path of this machine; what is printed names those of the traces."""
    if said := found.sureness():
        notes = [*notes, said]
    if found.failed_handovers:
        left = plural(found.failed_handovers, "hand-over that failed is", "hand-overs that failed are")
        notes = [*notes, f"{left} left out: a single model has none (`failed_handovers` in a trajectory's meta)."]
    data = {**settings, **found.to_json(), "notes": list(notes), "hints": found.hints()}
    write_atomic(out / "report.json", json.dumps(data, indent=2, ensure_ascii=False) + "\n")
    write_atomic(out / "report.html", _html(out, found, settings, notes))
    write_atomic(out / "README.md", _card(found, settings, notes))
    places = tuple(Skipped(file=file, place=place, reason=reason) for file, place, reason in found.named())
    return DistillReport(
        out, found.entered, found.kept, found.rows, tuple(found.stages()), found.unreadable, places, tuple(notes),
        tuple(found.hints(as_typed(traces))), found.failed_handovers, found.sureness(),
        _offer(found, out, traces, tasks),
    )  # fmt: skip


def as_typed(traces: Sequence[str | Path]) -> str:
    """The paths as they are typed into a shell."""
    return " ".join(shlex.quote(str(path)) for path in traces) or "traces/"


def _offer(found: Funnel, out: Path, traces: Sequence[Path], tasks: Path | None) -> str:
    if found.kept or not found.misfits or found.misfits * 2 < found.entered:
        return ""
    paths = as_typed(traces)
    answers = f" --tasks {shlex.quote(str(tasks))}" if tasks else ""
    return (
        "The profile was made for another kind of team. Make one from what this team did, and distil with it:\n"
        f"  coa profile from-traces {paths} > mine.toml\n"
        f"  coa distill {paths} --profile mine.toml{answers} --out {shlex.quote(str(out))}"
    )


def _html(out: Path, found: Funnel, settings: dict[str, Any], notes: Sequence[str]) -> str:
    stages = found.stages()
    rows = [(stage.name, stage.entered, stage.kept, stage.dropped, stage.meaning) for stage in stages]
    reasons = []
    for stage in stages:
        for reason, count in stage.reasons.items():
            lines = [
                f"{example.task}: {example.question} — {example.detail}"
                + (f" [{example.source}]" if example.source else "")
                for example in found.examples[stage.name, reason]
            ]
            reasons.append(details(f"{stage.name}: {reason}, {count:,}", lines))
    if found.unreadable:
        places = [f"{file} {place}: {reason}" for file, place, reason in found.named()]
        reasons.append(details(f"unreadable: {found.unreadable:,}", places))
    if decisions := [f"{place}: {decision}" for place, decision in found.decided()]:
        reasons.append(details(f"decisions about agents and hand-overs: {len(decisions):,}", decisions))
    decided = [
        (name, role, count) for name, kinds in sorted(found.roles.items()) for role, count in sorted(kinds.items())
    ]
    return page(
        "Distillation",
        paragraph(_summary(found, settings)),
        funnel(("read", found.entered), [row[:3] for row in rows], title="trajectories kept by each stage"),
        *(paragraph(note) for note in [*notes, *found.hints()]),
        section("Stages", table(["stage", "in", "kept", "dropped", "requires"], rows)),
        section("Reasons, with examples", *reasons),
        section(
            "Roles of agents and tools, and what decided them",
            table(["agent or tool of the team", "became", "runs"], decided),
        ),
        run=out,
    )


def copies_note(rows: int) -> str:
    """Why there are more rows than trajectories."""
    return (
        f"in {plural(rows, 'row')}: runs that corrected themselves are written several times, to weigh more in training"
    )


def _summary(found: Funnel, settings: dict[str, Any]) -> str:
    again = f" ({copies_note(found.rows)})" if found.rows != found.kept else ""
    return (
        f"{plural(found.entered, 'run')} read under the profile {settings['profile']}, {found.kept:,} kept{again}; "
        f"{plural(found.unreadable, 'place')} could not be read."
    )


def _card(found: Funnel, settings: dict[str, Any], notes: Sequence[str]) -> str:
    stages = "\n".join(f"| {s.name} | {s.entered:,} | {s.kept:,} | {s.meaning} |" for s in found.stages())
    sources = ", ".join(f"{count:,} {name}" for name, count in sorted(found.formats.items())) or "none"
    remarks = "".join(f"- {note}\n" for note in notes)
    return f"""---
configs:
- config_name: default
  data_files: trajectories.parquet
tags: [chain-of-agents, multi-agent-distillation]
---
# Trajectories distilled from a team of agents

{_summary(found, settings)}

- Profile: `{settings["profile"]}`. Each row is one run in which one model plays every agent.
- Sources: {sources}. The team's models wrote the texts; check their licences before you share this data set.
- The answers were judged again by: {settings["scorer"]}.
- Steps that a model wrote because the traces had no text: {found.filled:,} (`filled_by` in a step's meta).
- Runs whose first check failed and whose answer is right: {found.corrected:,}, each written
  {settings["config"]["correction"]["copies"]} times. Runs whose observations were shortened: {found.shortened:,}.
- The settings and the seed are in `config.json`; reasons with examples are in `report.json` and `report.html`.
{remarks}
| stage | in | kept | requires |
|---|---|---|---|
{stages}

`trajectories.jsonl` and `trajectories.parquet` hold the same rows. Train on the steps whose author is `model`.
"""
