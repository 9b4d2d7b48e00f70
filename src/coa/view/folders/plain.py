"""Folders of runs without a report: of `coa run`, `coa teach`, `coa serve`, or any others with trajectories in them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from coa.folder import read_config
from coa.report import plural
from coa.view.folders.evaluation import (
    TRAJECTORIES,
    agents_section,
    breakdown,
    computed,
    facts,
    failures,
    figures_of,
    stops_section,
    success_section,
    tool_errors,
)
from coa.view.folders.files import mapping
from coa.view.folders.light_runs import MOST_BYTES, light_runs
from coa.view.folders.parts import Builder, FolderView, settings, view

_TITLES: Final = {
    "run": "Runs", "teach": "Runs of a team", "serve": "Served conversations", "traces": "Traces", "data": "Data",
}  # fmt: skip


def plain_view(path: Path, kind: str) -> FolderView:
    config = read_config(path) or {}
    made = view(kind, f"{_TITLES.get(kind, 'Folder')}: {path.name}")
    build = Builder(made)
    if kind == "teach":
        team = config.get("team") or config.get("command")
        made["about"] = f"Recorded runs of the team {team}." if isinstance(team, str) else ""
    found = light_runs(path / TRAJECTORIES)
    if found.damaged:
        build.problem(f"{TRAJECTORIES}: {plural(found.damaged, 'damaged record')} left out.")
    if not found.complete:
        build.problem(f"Figures are of the first {MOST_BYTES >> 20} MB of {TRAJECTORIES}; the list has all runs.")
    if found.runs:
        _figures(build, build.tried("the figures", lambda: computed(found.runs, {})))
        build.add("why attempts did not succeed", lambda: failures(found.runs))
        build.add("tool errors", lambda: tool_errors(found.runs))
    if (about := settings(config)) is not None:
        made["sections"].append(about)
    return made


def _figures(build: Builder, report: Mapping[str, Any] | None) -> None:
    if report is None:
        return
    made = build.view
    made["facts"] = build.tried("the main figures", lambda: facts(report)) or []
    made["figures"] = build.tried("the figures", lambda: figures_of(report))
    build.add("success", lambda: success_section(report))
    if "family" in (groups := mapping(report.get("breakdown"))):
        build.add("the families", lambda: breakdown("family", groups["family"]))
    build.add("how runs ended", lambda: stops_section(report["stops"]))
    build.add("who wrote how much", lambda: agents_section(report["agents"]))
