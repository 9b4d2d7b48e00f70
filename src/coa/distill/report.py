"""What a distillation leaves for people: report.json, the same as a picture in report.html, and the dataset card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from coa.distill.filters import Reason, Stage
from coa.distill.funnel import Funnel
from coa.report import details, funnel, page, paragraph, plural, table

_MEANING = {
    Stage.COMPLEXITY: "enough tool calls, and not too many",
    Stage.QUALITY: "sound steps, few errors, no repetition, no leak, a right answer",
    Stage.REFLECTION: "runs without reflection thinned out",
    Stage.CORRECTION: "runs that corrected themselves written several times",
    Stage.LENGTH: "fits the student",
    Stage.CONTAMINATION: "no benchmark question",
    Stage.DUPLICATES: "each question once",
}
_CURES = {
    Reason.UNSCORED: "Nobody could judge these answers: give the right ones with --tasks, a judge with --judge, "
    "or keep them with --keep-unscored.",
    Reason.VIOLATION: "These runs break the profile's order. Texts that the trace lacks can be written with --fill; "
    "another --profile may ask for less; quality.tolerated lets single rules go.",
    Reason.INEXPRESSIBLE: "The profile has no step for something the team did; --profile all has most of them.",
    Reason.TOO_FEW_CALLS: "complexity.fewest_calls sets the least number of tool calls.",
}


def hints(found: Funnel) -> list[str]:
    """What to do about the reasons that cost most."""
    counts = {reason: count for counter in found.dropped.values() for reason, count in counter.items()}
    worst = sorted(counts, key=lambda reason: (-counts[reason], reason))
    return [_CURES[reason] for reason in worst if reason in _CURES and counts[reason] >= 0.1 * found.entered]


def write_report(out: Path, found: Funnel, settings: dict[str, Any], notes: list[str]) -> None:
    data = {**settings, **found.to_json(), "notes": notes, "hints": hints(found)}
    _replace(out / "report.json", json.dumps(data, indent=2, ensure_ascii=False) + "\n")
    _replace(out / "report.html", _html(found, settings, notes))
    _replace(out / "README.md", _card(found, settings, notes))


def _html(found: Funnel, settings: dict[str, Any], notes: list[str]) -> str:
    rows = [(stage.value, there, kept) for stage, there, kept in found.stages()]
    parts = [
        paragraph(_summary(found, settings)),
        funnel(("read", found.entered), rows, title="trajectories kept by each stage"),
        *(paragraph(note) for note in [*notes, *hints(found)]),
        paragraph("", heading="Stages"),
        table(
            ["stage", "in", "kept", "dropped", "what it asks for"],
            [(stage.value, there, kept, there - kept, _MEANING[stage]) for stage, there, kept in found.stages()],
        ),
        paragraph("", heading="Why, with examples"),
    ]
    for stage in Stage:
        for reason, count in sorted(found.dropped[stage].items(), key=lambda item: (-item[1], item[0])):
            lines = [
                f"{example.task}: {example.question} — {example.detail}"
                + (f" [{example.source}]" if example.source else "")
                for example in found.examples[(stage, reason)]
            ]
            parts.append(details(f"{stage.value}: {reason.value}, {count:,}", lines))
    if found.unreadable:
        places = [f"{file} {place}: {reason}" for file, place, reason in found.named()]
        parts.append(details(f"unreadable: {found.unreadable:,}", places))
    if found.roles:
        parts.append(paragraph("", heading="Who plays which part, and what decided"))
        decided = [
            (name, role, count) for name, kinds in sorted(found.roles.items()) for role, count in sorted(kinds.items())
        ]
        parts.append(table(["agent or tool of the team", "became", "runs"], decided))
    return page("Distillation", *parts)


def _summary(found: Funnel, settings: dict[str, Any]) -> str:
    again = f" ({plural(found.rows, 'row')} with the copies of self-corrections)" if found.rows != found.kept else ""
    return (
        f"{plural(found.entered, 'run')} read under the profile {settings['profile']}, {found.kept:,} kept{again}; "
        f"{plural(found.unreadable, 'place')} could not be read."
    )


def _card(found: Funnel, settings: dict[str, Any], notes: list[str]) -> str:
    stages = "\n".join(
        f"| {stage.value} | {there:,} | {kept:,} | {_MEANING[stage]} |" for stage, there, kept in found.stages()
    )
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
- Sources: {sources}. The texts are the team's models' own; check their licences before you share this set.
- Answers were judged again by: {settings["scorer"]}.
- Steps written by a model where the traces had no text: {found.filled:,} (`filled_by` in a step's meta).
- Runs that failed their first check and ended right: {found.corrected:,}, each written
  {settings["config"]["correction"]["copies"]} times. Runs with observations shortened to fit: {found.shortened:,}.
- All settings and the seed are in `config.json`, reasons with examples in `report.json` and `report.html`.
{remarks}
| stage | in | kept | what it asks for |
|---|---|---|---|
{stages}

`trajectories.jsonl` and `trajectories.parquet` hold the same rows. Train on the steps whose author is `model`.
"""


def _replace(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
