"""A comparison: the runs side by side, how certain their differences are, and the tasks on which they disagree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from coa.compare.page import per_success, success, table_rows
from coa.evaluate.report import percent
from coa.report import Bar, plural
from coa.trajectory import Stop
from coa.view.folders.files import mapping, read_json
from coa.view.folders.parts import (
    Builder,
    FolderView,
    Section,
    Table,
    cell,
    fact,
    lines,
    section,
    table,
    view,
    within,
)
from coa.web.plots import Bars, bars

Report = dict[str, Any]
_MOST_TASKS: Final = 50
_OWN_TASKS: Final = "The figures of each run are over all tasks of that run"


def comparison_view(path: Path) -> FolderView:
    made = view("compare", f"Comparison: {path.name}")
    build = Builder(made)
    report, wrong = read_json(path / "report.json")
    if report is None:
        build.problem(wrong or "There is no report.json.")
        return made
    build.tried("the summary", lambda: _summary(made, report, path))
    links = build.tried("the names of the runs", lambda: links_of(path, report)) or {}
    add_results(build, report, links)
    build.add("how runs ended", lambda: _ends(report["runs"]))
    return made


def add_results(build: Builder, report: Report, links: Mapping[str, str]) -> None:
    """Success, costs, differences and disagreements; `links` leads from the name of a run to its folder."""
    build.add("success", lambda: success_section(report["runs"], links))
    build.add("what a success took", lambda: costs_section(report["runs"], links))
    build.add("the differences", lambda: differences_section(report["pairs"]))
    build.add("the disagreements", lambda: disagreements(report["pairs"], links))
    build.add("all figures", lambda: section("All figures", _all_figures(report["runs"])))


def links_of(path: Path, report: Report) -> dict[str, str]:
    return {run["name"]: within(path, run["path"]) for run in report["runs"] if isinstance(run.get("path"), str)}


def _summary(made: FolderView, report: Report, path: Path) -> None:
    names = [run["name"] for run in report["runs"]]
    common = report["shared_tasks"]
    if any(run["results"]["tasks"] != common for run in report["runs"]):
        in_all = f"{plural(common, 'task is', 'tasks are')} in all runs."
        made["about"] = (
            f"{', '.join(names)}. {in_all} {_OWN_TASKS}; differences are over the tasks that both runs have."
        )
    else:
        made["about"] = f"{', '.join(names)} on {plural(common, 'common task')}."
    made["facts"] = [
        fact(run["name"], f"{success(run)['value']:.1%}", percent(success(run)).partition(" ")[2], link)
        for run in report["runs"]
        for link in [within(path, str(run.get("path", "")))]
    ]
    left = [
        f"{count:,} of {run['name']}"
        for count, run in zip(report["tasks_left_out"], report["runs"], strict=False)
        if count
    ]
    if left:
        made["notices"].append(f"Tasks left out, because another run lacks them: {', '.join(left)}.")
    made["notices"] += [f"{run['name']}: {note}" for run in report["runs"] for note in run.get("notes") or ()]


def success_section(
    runs: Sequence[Report], links: Mapping[str, str], names: Mapping[str, str] | None = None
) -> Section | None:
    rows = [(_bar(_named(run, names), success(run), percent(success(run))), links.get(run["name"], "")) for run in runs]
    shown = bars("Success (pass@1) with 95 % intervals", rows, most=1.0)
    return section("Success", shown, about=_own_tasks(runs, names))


def costs_section(
    runs: Sequence[Report], links: Mapping[str, str], names: Mapping[str, str] | None = None
) -> Section | None:
    made: list[Bars] = []
    for key, title, digits in (("tokens_per_success", "Tokens per success", 0),
                               ("tool_calls_per_success", "Tool calls per success", 1)):  # fmt: skip
        rows = [
            (_bar(_named(run, names), run[key], per_success(run[key], digits)), links.get(run["name"], ""))
            for run in runs
            if run[key]
        ]
        if rows:
            made.append(bars(title, rows))
    without = [_named(run, names) for run in runs if not run["tokens_per_success"]]
    about = [_own_tasks(runs, names), f"No success: {', '.join(without)}." if without else ""]
    return section("What a success took", *made, about=" ".join(filter(None, about)))


def _own_tasks(runs: Sequence[Report], names: Mapping[str, str] | None = None) -> str:
    """That the figures of the runs are over different numbers of tasks; empty if they are over the same number."""
    counts = {_named(run, names): int(run["results"]["tasks"]) for run in runs}
    if len(set(counts.values())) < 2:
        return ""
    listed = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    return f"{_OWN_TASKS}: {listed}."


def differences_section(pairs: Sequence[Report], names: Mapping[str, str] | None = None) -> Section | None:
    called = names or {}
    rows = [
        [
            f"{called.get(pair['second'], pair['second'])} against {called.get(pair['first'], pair['first'])}",
            pair["tasks"],
            _points(pair["success"]),
            _ratio(pair["tokens_per_success"]),
            _ratio(pair["tool_calls_per_success"]),
        ]
        for pair in pairs
    ]
    about = "Paired over the tasks that both runs have; the intervals are bootstrapped over tasks, at 95 %."
    columns = ["second against first", "tasks", "success", "tokens per success ×", "tool calls per success ×"]
    return section("Differences", table("", columns, rows), about=about) if rows else None


def disagreements(pairs: Sequence[Report], links: Mapping[str, str]) -> Section | None:
    parts = []
    for pair in pairs:
        both = _compared(links.get(pair["first"], ""), links.get(pair["second"], ""))
        for which, other, pattern in (("first", "second", "10"), ("second", "first", "01")):
            count, tasks = int(pair[f"only_{which}_tasks"]), pair[f"only_{which}"]
            if not count:
                continue
            listed = [cell("Show these tasks side by side", f"{both}&only={pattern}")] if both else []
            listed += [cell(task, f"tasks?{urlencode({'task': task})}") for task in tasks[:_MOST_TASKS]]
            if count > _MOST_TASKS:
                listed.append(cell(f"and {count - _MOST_TASKS:,} more"))
            parts.append(lines(f"Right in {pair[which]}, not in {pair[other]}: {count:,}", listed))
    return section("Tasks on which two runs disagree", *parts)


def _compared(first: str, second: str) -> str:
    return f"compare?{urlencode([('in', first[3:]), ('in', second[3:])])}" if first and second else ""


def _all_figures(runs: Sequence[Report]) -> Table:
    rows = [[name, *cells] for name, cells in table_rows(runs)]
    return table("All figures", ["", *(run["name"] for run in runs)], rows, folded=True)


def _ends(runs: Sequence[Report]) -> Section | None:
    stops = list(dict.fromkeys(stop for run in runs for stop in run["stops"]))
    words = {stop.value: stop.words for stop in Stop}
    rows = [[words.get(stop, stop), *(run["stops"].get(stop, 0) for run in runs)] for stop in stops]
    return section("How runs ended", table("", ["end", *(run["name"] for run in runs)], rows)) if rows else None


def _named(run: Report, names: Mapping[str, str] | None) -> str:
    return str((names or {}).get(run["name"], run["name"]))


def _bar(name: str, value: Mapping[str, Any], note: str) -> Bar:
    return Bar(name, value["value"], note, value["low"], value["high"])


def _points(value: object) -> str:
    found = mapping(value)
    if not found:
        return "–"
    return f"{100 * found['value']:+.1f} points [{100 * found['low']:+.1f}, {100 * found['high']:+.1f}]"


def _ratio(value: object) -> str:
    found = mapping(value)
    if not found:
        return "–"
    low, high = found["low"], found["high"]
    ends = f"[at least {low:.2f}]" if high is None else f"[{low:.2f}, {high:.2f}]"
    return f"{found['value']:.2f} {ends}"
