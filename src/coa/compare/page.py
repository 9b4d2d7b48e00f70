"""The comparison as one HTML file that opens anywhere."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from coa.evaluate.report import group_table, percent
from coa.evaluate.summary import Figures
from coa.report import Bar, bars, details, page, paragraph, plural, section, table
from coa.trajectory import Stop
from coa.trajectory.store import NAMES

_MOST_SHOWN: Final = 50
_SPENT: Final = {
    "prompt_tokens": "tokens read", "cached_tokens": "  from cache", "completion_tokens": "tokens written",
    "model_calls": "model calls", "tool_calls": "tool calls",
}  # fmt: skip


def comparison_page(found: Figures, out: str | Path | None = None) -> str:
    runs, paths = found["runs"], {run["name"]: paths_of(run) for run in found["runs"]}
    names = [run["name"] for run in runs]
    rates = [_bar(run["name"], success(run), f"{success(run)['value']:.1%}") for run in runs]
    columns = ["", *(f"{run['name']} ({run['kind']})" for run in runs)]
    agents = list(dict.fromkeys(name for run in runs for name in run["agents"]["share"]))
    shares = [(name, *(_percent(run["agents"]["share"].get(name)) for run in runs)) for name in agents]
    stops = sorted({stop for run in runs for stop in run["stops"]})
    disagreements = [_disagreement(pair, which, paths) for pair in found["pairs"] for which in ("first", "second")]
    about = "95 % intervals are over resamples of the tasks, the same tasks for both runs."
    return page(
        f"Comparison: {', '.join(names)}",
        paragraph(_about(found)),
        *(paragraph(f"{run['name']}: {note}") for run in runs for note in run["notes"]),
        section(
            "Success",
            bars(rates, title="success", most=1.0),
            table(columns, [(name, *cells) for name, cells in table_rows(runs)]),
        ),
        *(
            section(f"{heading} per success", *_costs(runs, key, f"{heading.lower()} per success", digits))
            for key, heading, digits in (
                ("tokens_per_success", "Tokens", 0),
                ("tool_calls_per_success", "Tool calls", 1),
            )
        ),
        section("Differences", *([paragraph(about), _difference_table(found["pairs"])] if found["pairs"] else [])),
        section("Tasks on which two runs disagree", *disagreements),
        section("Who wrote how much", table(["agent", *names], shares)),
        section(
            "How runs ended",
            table(
                ["end", *names],
                [(Stop(stop).words, *(run["stops"].get(stop, 0) for run in runs)) for stop in stops],
            ),
        ),
        *(
            section(f"{run['name']} by {key}", group_table(groups))
            for run in runs
            for key, groups in run["breakdown"].items()
        ),
        run=out,
    )


def _costs(runs: Sequence[Figures], key: str, title: str, digits: int) -> list[str]:
    """What a success took in each run, with an arrow where the interval has no upper end."""
    shown = [_bar(run["name"], run[key], per_success(run[key], digits)) for run in runs if run[key]]
    without = [run["name"] for run in runs if not run[key]]
    parts = [bars(shown, title=title) if shown else ""]
    if any(bar.open for bar in shown):
        parts.append(paragraph("An arrow marks an interval without an upper end: too few successes to bound it."))
    return [*parts, paragraph(f"No success: {', '.join(without)}.") if without else ""]


def success(run: Figures) -> Mapping[str, float]:
    found: Mapping[str, float] = run["results"]["metrics"]["pass@1"]
    return found


def table_rows(runs: Sequence[Figures]) -> list[tuple[str, list[str]]]:
    """Name of a figure and its value for each run, for terminal and page."""
    rows: list[tuple[str, list[str]]] = [
        ("tasks", [f"{run['results']['tasks']:,}" for run in runs]),
        ("attempts", [f"{run['results']['attempts']:,}" for run in runs]),
        ("success (pass@1)", [percent(success(run)) for run in runs]),
    ]
    others = list(dict.fromkeys(name for run in runs for name in run["results"]["metrics"] if name != "pass@1"))
    metrics = [run["results"]["metrics"] for run in runs]
    rows += [(name, [percent(found[name]) if found.get(name) else "-" for found in metrics]) for name in others]
    rows += [(kind, [f"{run['results'][kind]:,}" for run in runs]) for kind in ("unanswered", "failed", "unscored")]
    rows.append(("tokens per success", [per_success(run["tokens_per_success"], 0) for run in runs]))
    if any("sequence_tokens" in run["spent"]["total"] for run in runs):
        rows.append(("  each counted once", [_spent(run, "per_success", "sequence_tokens") for run in runs]))
    rows.append(("tool calls per success", [per_success(run["tool_calls_per_success"], 1) for run in runs]))
    for name, label in _SPENT.items():
        cells = [_spent(run, "per_attempt", name) for run in runs]
        if set(cells) != {"-"}:  # what was read from the cache is unknown where a tokenizer counted
            rows.append((f"{label} per attempt", cells))
    if any(run["spent"]["total"]["cost"] is not None for run in runs):
        rows.append(("cost per success", [_spent(run, "per_success", "cost", digits=5) for run in runs]))
    rows.append(("seconds per attempt", [_number(run["timing"]["seconds_per_attempt"]) for run in runs]))
    rows.append(("runs with format repairs", [_percent(run["repairs"]["share_of_attempts"]) for run in runs]))
    rows.append(("scorer", [run["scorer"] for run in runs]))
    return rows


def differences(pairs: Sequence[Figures]) -> list[str]:
    """A line for each pair."""
    return [
        f"{pair['second']} against {pair['first']}, {plural(pair['tasks'], 'task')}: success {_points(pair['success'])}"
        + (f", tokens per success x {_ratio(pair['tokens_per_success'])}" if pair["tokens_per_success"] else "")
        + (f", tool calls per success x {_ratio(calls)}" if (calls := pair["tool_calls_per_success"]) else "")
        for pair in pairs
    ]


def _difference_table(pairs: Sequence[Figures]) -> str:
    rows = []
    for pair in pairs:
        ratios = _ratio(pair["tokens_per_success"]), _ratio(pair["tool_calls_per_success"])
        rows.append((f"{pair['second']} against {pair['first']}", pair["tasks"], _points(pair["success"]), *ratios))
    return table(["second against first", "tasks", "success", "tokens per success", "tool calls per success"], rows)


def _disagreement(pair: Figures, which: str, paths: Mapping[str, Sequence[str]]) -> str:
    tasks: Sequence[str] = pair[f"only_{which}"]
    count = pair[f"only_{which}_tasks"]
    if not count:
        return ""
    other = pair["second"] if which == "first" else pair["first"]
    lines = [
        f"{task}: " + "; ".join(look(paths[name], task) for name in (pair["first"], pair["second"]))
        for task in tasks[:_MOST_SHOWN]
    ]
    if count > _MOST_SHOWN:
        lines.append(f"and {count - _MOST_SHOWN:,} more, in report.json")
    return details(f"right in {pair[which]}, not in {other}: {count:,}", lines)


def paths_of(run: Figures) -> list[str]:
    return list(run["shards"]) or [run["path"]]


def look(paths: Sequence[str], task: str) -> str:
    """The command that shows what a run did at a task."""
    benchmark, slash, inside = task.partition("/")
    if slash and (Path(paths[0]) / benchmark / NAMES[0]).is_file():  # one of several that were evaluated together
        paths, task = [str(Path(path) / benchmark) for path in paths], inside
    return shlex.join(["coa", "inspect", *paths, "--task", task])


def _about(found: Figures) -> str:
    counts = zip(found["tasks_left_out"], found["runs"], strict=True)
    left = [f"{count:,} of {run['name']}" for count, run in counts if count]
    out = f" Left out, because another run lacks them: {', '.join(left)}." if left else ""
    return f"{plural(len(found['runs']), 'run')}, {plural(found['shared_tasks'], 'task')} in common.{out}"


def _bar(name: str, value: Mapping[str, float], note: str) -> Bar:
    return Bar(name, value["value"], note, value["low"], value["high"])


def per_success(value: Mapping[str, float] | None, digits: int) -> str:
    """What a success took, with its interval."""
    shape = f",.{digits}f"
    return f"{value['value']:{shape}} {_interval(value, shape)}" if value else "no success"


def _interval(value: Mapping[str, float | None], shape: str) -> str:
    low, high = value["low"], value["high"]
    return f"[at least {low:{shape}}]" if high is None else f"[{low:{shape}}, {high:{shape}}]"


def _points(value: Mapping[str, float] | None) -> str:
    if value is None:
        return "-"
    return f"{100 * value['value']:+.1f} points [{100 * value['low']:+.1f}, {100 * value['high']:+.1f}]"


def _ratio(value: Mapping[str, float] | None) -> str:
    return f"{value['value']:.2f} {_interval(value, '.2f')}" if value else "-"


def _spent(run: Figures, per: str, name: str, digits: int = 1) -> str:
    found: dict[str, Any] | None = run["spent"][per]
    return _number((found or {}).get(name), digits)


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
