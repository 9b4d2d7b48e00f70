"""Training runs, SFT and RL: how far they are, and the curves of metrics.jsonl."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from coa.folder import read_config
from coa.report import plural
from coa.training.run_folder import METRICS, MODEL, clock
from coa.view.folders.families import FamilyRow, families_plot, family_rows, group_files
from coa.view.folders.files import Cache, Row, mapping, number, read_metrics, stamp
from coa.view.folders.metric_panels import RL, SFT, STEP_LINK, PanelGroup, curve_sections, sampler_families
from coa.view.folders.parts import (
    Builder,
    Fact,
    FolderView,
    Section,
    cell,
    fact,
    section,
    settings,
    table,
    view,
    within,
)
from coa.web.plots import LinePlot, said

_PACE: Final = 10
"""Number of the latest steps whose pace gives the time left."""
_Curves = tuple[list[Section], LinePlot | None]
_drawn: Cache[_Curves] = Cache(16)
"""Curves of ten thousand steps take half a second to draw."""
_families_drawn: Cache[LinePlot | None] = Cache(16)


def sft_view(path: Path) -> FolderView:
    known = (read_config(path) or {}).get("stage") == "sft"
    made = view("sft", f"{'Supervised fine-tuning' if known else 'Training'}: {path.name}")
    build, rows = _begun(made, path)
    if rows:
        last = [
            ("loss", "Loss", "number"),
            ("held_out_loss", "Held-out loss", "number"),
            ("success", "Success", "share"),
        ]
        made["facts"] += build.tried("the latest figures", lambda: _latest(rows, last)) or []
        made["sections"] += build.tried("the curves", lambda: _curves(path, rows, SFT, "")[0]) or []
    return _ended(made, path)


def rl_view(path: Path, rows: Iterable[FamilyRow] | None = None) -> FolderView:
    """`rows` are the attempts as the index knows them; None reads them from the files of groups."""
    made = view("rl", f"Reinforcement learning: {path.name}")
    build, metrics = _begun(made, path)
    made["steps"] = list(group_files(path))
    if metrics:
        last = [("reward", "Reward", "number"), ("success", "Success", "share"),
                ("held_out_success", "Held-out success", "share"), ("entropy", "Entropy", "number"),
                ("model_tokens", "Tokens per attempt", "number")]  # fmt: skip
        made["facts"] += build.tried("the latest figures", lambda: _latest(metrics, last)) or []
        href = STEP_LINK if made["steps"] else ""
        sections, sampler = build.tried("the curves", lambda: _curves(path, metrics, RL, href)) or ([], None)
        made["sections"] += sections[:1]
        build.add("the families", lambda: _families(path, rows, sampler))
        made["sections"] += sections[1:]
    else:
        build.add("the families", lambda: _families(path, rows))
    return _ended(made, path)


def _curves(path: Path, rows: Sequence[Row], groups: Sequence[PanelGroup], href: str) -> _Curves:
    """The sections with curves, and the families as the sampler of RL sees them."""
    file = path / METRICS
    return _drawn.get(
        file,
        (stamp(file), href),
        lambda: (curve_sections(rows, groups, href=href), sampler_families(rows, href=href)),
    )


def _families(path: Path, rows: Iterable[FamilyRow] | None, sampler: LinePlot | None = None) -> Section | None:
    if rows is not None:
        return section("Families over time", families_plot(rows), sampler)
    mark = [stamp(file) for file in group_files(path).values()]
    return section(
        "Families over time", _families_drawn.get(path, mark, lambda: families_plot(family_rows(path))), sampler
    )


def _begun(made: FolderView, path: Path) -> tuple[Builder, list[Row]]:
    build = Builder(made)
    rows, problems = read_metrics(path / METRICS)
    for problem in problems:
        build.problem(problem)
    config = mapping((read_config(path) or {}).get("config"))
    if not rows:
        build.problem(f"There are no figures in {METRICS} yet: the first step has not ended.")
    made["about"] = " ".join(
        filter(None, (f"Model {config['model']}." if config.get("model") else "",
                      f"Tasks {config['tasks']}." if config.get("tasks") else ""))
    )  # fmt: skip
    made["facts"] = build.tried("the progress", lambda: [_progress(path, rows, config)]) or []
    return build, rows


def _progress(path: Path, rows: Sequence[Row], config: Mapping[str, Any]) -> Fact:
    step, most = int(rows[-1]["step"]) if rows else 0, number(config.get("max_steps"))
    whole = f" of {most:,.0f}" if most and most > 0 else ""
    return fact("Step", f"{step:,}{whole}", "finished" if (path / MODEL).is_dir() else _left(rows, step, most))


def _left(rows: Sequence[Row], step: int, most: float | None) -> str:
    """How long the rest takes at the latest pace."""
    times = [(row["step"], row["time"]) for row in rows[-_PACE:] if number(row.get("time")) is not None]
    if most is None or len(times) < 2 or times[-1][0] <= times[0][0] or most <= step:
        return ""
    pace = (times[-1][1] - times[0][1]) / (times[-1][0] - times[0][0])
    return f"about {clock(max(pace, 0) * (most - step))} left at the latest pace"


def _latest(rows: Sequence[Row], wanted: Sequence[tuple[str, str, Any]]) -> list[Fact]:
    """The last value of each metric that there is, and the first one."""
    found = []
    for name, words, unit in wanted:
        first, last = _first(rows, name), _first(reversed(rows), name)
        if first is not None and last is not None:
            note = f"{said(first[1], unit)} at step {first[0]:,}" if first[0] != last[0] else ""
            found.append(fact(words, said(last[1], unit), note))
    return found


def _first(rows: Iterable[Row], name: str) -> tuple[float, float] | None:
    found = ((row["step"], value) for row in rows if (value := number(row.get(name))) is not None)
    return next(found, None)


def _ended(made: FolderView, path: Path) -> FolderView:
    looks = _looks(path)
    if looks is not None:
        made["sections"].append(looks)
    if (about := settings(read_config(path))) is not None:
        made["sections"].append(about)
    return made


def _looks(path: Path) -> Section | None:
    """The held-out runs that were kept at some steps."""
    steps = {}
    for folder in (path / "agent").glob("step-*"):
        if folder.name.removeprefix("step-").isdecimal():
            steps[int(folder.name.removeprefix("step-"))] = folder
    rows = [[cell(f"step {step:,}", within(path, folder))] for step, folder in sorted(steps.items())]
    about = f"Greedy runs on held-out tasks, kept at {plural(len(rows), 'step')}."
    return section("Held-out runs", table("", ["runs"], rows), about=about) if rows else None
