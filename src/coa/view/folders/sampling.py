"""A sampling of tasks: which were kept for reinforcement learning, and how often each was solved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from coa.folder import read_config
from coa.report import Bar
from coa.sampling.report import MEANING
from coa.view.folders.files import read_json
from coa.view.folders.parts import Builder, FolderView, Section, fact, section, settings, table, view, within
from coa.web.plots import Bars, bars, funnel

Report = Mapping[str, Any]
_ATTEMPTS: Final = {"with-tools": "Attempts with tools", "without-tools": "Attempts without tools"}


def sampling_view(path: Path) -> FolderView:
    made = view("sample", f"Query sampling: {path.name}", "Tasks that are neither too easy nor too hard for the model.")
    build = Builder(made)
    report, wrong = read_json(path / "report.json")
    if report is None:
        build.problem(wrong or "There is no report.json yet: it is written when the sampling ends.")
    else:
        build.tried("the summary", lambda: _summary(made, report))
        build.add("the funnel", lambda: _funnel(report))
        build.add("the histograms", lambda: _histograms(report))
    rows = [[{"text": words, "href": href}] for name, words in _ATTEMPTS.items() if (href := within(path, path / name))]
    if rows:
        made["sections"].append(Section(title="Attempts", about="", parts=[table("", ["folder"], rows)]))
    if (about := settings(read_config(path))) is not None:
        made["sections"].append(about)
    return made


def _summary(made: FolderView, report: Report) -> None:
    made["facts"] = [
        fact("Tasks", f"{report['tasks']:,}"),
        fact("Kept", f"{report['kept']:,}", f"{report['kept'] / report['tasks']:.1%}" if report["tasks"] else ""),
        fact("Attempts", f"{report['attempts']:,}", f"{report['unscored_attempts']:,} could not be scored"),
    ]


def _funnel(report: Report) -> Section | None:
    stages, left, rows = [], int(report["tasks"]), []
    for fate, why in MEANING.items():
        lost = int(report["dropped"].get(fate.value, 0))
        stages.append((fate.value, left, left - lost))
        left -= lost
        if lost:
            rows.append([fate.value, lost, why])
    shown = funnel("Tasks left after each rule", ("tasks", int(report["tasks"])), stages)
    return section(
        "From tasks to kept tasks", shown, table("", ["dropped as", "tasks", "because"], rows) if rows else None
    )


def _histograms(report: Report) -> Section | None:
    rules = report["rules"]
    return section(
        "How often tasks were solved",
        _bars(report["solved_with_tools"], int(rules["samples"]), "Tasks by attempts solved with tools"),
        _bars(report["solved_without_tools"], int(rules["no_tools_samples"]), "Tasks by attempts solved without tools"),
    )


def _bars(counts: Sequence[int], samples: int, title: str) -> Bars | None:
    rows = [(Bar(f"{solved} of {samples}", count, f"{count:,}"), "") for solved, count in enumerate(counts)]
    return bars(title, rows) if samples and any(counts) else None
