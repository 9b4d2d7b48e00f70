"""The demo: what was measured, how the data were filtered, how training went, and the way to each part."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from coa.compare.page import per_success, success
from coa.report import plural
from coa.training.run_folder import METRICS
from coa.view.folders.comparison import (
    costs_section,
    differences_section,
    disagreements,
    success_section,
)
from coa.view.folders.distillation import funnel_of
from coa.view.folders.files import Row, mapping, number, read_json, read_metrics
from coa.view.folders.metric_panels import Panel, panel_plot
from coa.view.folders.parts import Builder, FolderView, Section, cell, fact, section, table, view, within
from coa.web.plots import Funnel, LinePlot

STATE: Final = "demo.json"
_ABOUT: Final = (
    "A team of separate agents answered questions about an invented web and was recorded. Its runs became runs of one "
    "model; SmolLM2 was fine-tuned on them and then trained further by reinforcement learning with real tools. All "
    "were asked the same held-out questions."
)
_NAMES: Final = {"team": "team", "base": "SmolLM2", "sft": "fine-tuned", "rl": "reinforced"}
_STAGES: Final = (
    ("world", "world", "An invented web with tasks"),
    ("teach", "traces", "The team's runs"),
    ("distil", "data", "Training data made from them"),
    ("eval-base", "eval/base", "Evaluation of SmolLM2"),
    ("sft", "sft", "Supervised fine-tuning"),
    ("eval-sft", "eval/sft", "Evaluation of the fine-tuned model"),
    ("rl", "rl", "Reinforcement learning"),
    ("eval-rl", "eval/rl", "Evaluation of the reinforced model"),
    ("eval-team", "eval/team", "The team on the held-out tasks"),
    ("compare", "comparison", "Comparison of all of them"),
)
"""Stage, its folder and what it makes; a stage that is not listed has a row all the same."""


def demo_view(path: Path) -> FolderView:
    made = view("demo", "Chain of Agents: the demo", _ABOUT)
    build = Builder(made)
    state, wrong = read_json(path / STATE)
    if wrong:
        build.problem(wrong)
    report, wrong = read_json(path / "comparison" / "report.json")
    if report is None:
        build.problem(wrong or "There is no comparison yet: it is the last stage of the demo.")
    else:
        links = {run["name"]: _evaluated(path, run["name"]) for run in report.get("runs", ()) if "name" in mapping(run)}
        build.tried("the result", lambda: _result(made, report, links))
        build.add("success", lambda: _titled("On held-out tasks", success_section(report["runs"], links, _NAMES)))
        build.add("the table", lambda: _table(report, links))
        build.add("what a success took", lambda: costs_section(report["runs"], links, _NAMES))
        build.add("the differences", lambda: differences_section(report["pairs"], _NAMES))
        build.add("the disagreements", lambda: disagreements(report["pairs"], links))
    build.add("the funnel", lambda: section("From the team's runs to training data", _funnel(path)))
    build.add("the curves", lambda: section("Training", *_curves(path), about=_CURVES))
    build.add("the stages", lambda: _stages(path, state or {}))
    return made


_CURVES: Final = "A point of a curve of reinforcement learning leads to the attempts behind it."


def _result(made: FolderView, report: Mapping[str, Any], links: Mapping[str, str]) -> None:
    for run in report["runs"]:
        found = success(run)
        note = f"95 % [{found['low']:.1%}, {found['high']:.1%}], {plural(run['results']['tasks'], 'task')}"
        name = run["name"]
        made["facts"].append(
            fact(f"Success, {_NAMES.get(name, name)}", f"{found['value']:.1%}", note, links.get(name, ""))
        )


def _table(report: Mapping[str, Any], links: Mapping[str, str]) -> Section | None:
    rows = []
    for run in report["runs"]:
        rate, name = success(run), run["name"]
        rows.append([
            cell(_NAMES.get(name, name), links.get(name, "")),
            run["results"]["tasks"],
            f"{rate['value']:.1%} [{100 * rate['low']:.0f}, {100 * rate['high']:.0f}]",
            per_success(run["tokens_per_success"], 0),
            per_success(run["tool_calls_per_success"], 1),
            f"{run['repairs']['share_of_attempts']:.1%}",
        ])  # fmt: skip
    columns = ["", "tasks", "success", "tokens per success", "tool calls per success", "runs with format repairs"]
    return section("Results", table("", columns, rows), about="With 95 % intervals.") if rows else None


def _titled(title: str, found: Section | None) -> Section | None:
    return None if found is None else Section(title=title, about=found["about"], parts=found["parts"])


def _evaluated(path: Path, name: str) -> str:
    return within(path, path / "eval" / name) or within(path, path / name)


def _funnel(path: Path) -> Funnel | None:
    report, _ = read_json(path / "data" / "report.json")
    return funnel_of(report) if report is not None else None


def _curves(path: Path) -> list[LinePlot]:
    wanted = (
        ("sft", Panel("Fine-tuning: loss", {"loss": "training", "held_out_loss": "held-out"}, log=True)),
        ("rl", Panel("Reinforcement learning: success", {"success": "attempts", "held_out_success": "held-out tasks"},
                     "Each step's tasks are others.", "share")),
        ("rl", Panel("Reinforcement learning: length", {"model_tokens": "tokens"},
                     "Tokens that the model writes in an attempt.")),
    )  # fmt: skip
    found = []
    for folder, panel in wanted:
        rows: list[Row] = read_metrics(path / folder / METRICS)[0]
        if (plot := panel_plot(rows, panel, href="in/rl/step/{x}" if folder == "rl" else "")) is not None:
            found.append(plot)
    return found


def _stages(path: Path, state: Mapping[str, Any]) -> Section | None:
    seconds, begun = mapping(state.get("seconds")), state.get("begun")
    known = {name: (folder, words) for name, folder, words in _STAGES}
    names = [name for name, folder, _ in _STAGES if name in seconds or name == begun or (path / folder).is_dir()]
    rows = []
    for name in [*names, *(name for name in seconds if name not in known)]:
        folder, words = known.get(name, ("", name))
        took = number(seconds.get(name))
        shown = "running" if name == begun else "" if took is None else str(timedelta(seconds=round(took)))
        rows.append([name, cell(words, within(path, path / folder) if folder else ""), shown])
    made = [
        f"Recipe {state['recipe']}." if state.get("recipe") else "",
        f"Seed {state['seed']}." if "seed" in state else "",
    ]
    about = " ".join(filter(None, [*made, "coa demo --plan prints the commands."]))
    return section("How it was made", table("", ["stage", "makes", "took"], rows), about=about) if rows else None
