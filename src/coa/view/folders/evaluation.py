"""An evaluation: success with intervals, what a success took, families, and why the other attempts did not succeed.

The figures are those of report.json. While an evaluation runs there is none, or one of an earlier end, so they are
computed from the attempts that there are, by the same code. Why attempts failed is in the attempts alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from coa.evaluate.attempts import GROUPS, by_task
from coa.evaluate.report import caveat, deciding, percent
from coa.evaluate.summary import summed_up
from coa.folder import read_config
from coa.report import Bar, plural
from coa.trajectory import Stop
from coa.view.folders.files import mapping, number, read_json
from coa.view.folders.light_runs import MOST_BYTES, LightRun, LightRuns, light_runs
from coa.view.folders.parts import (
    Builder,
    Estimated,
    Fact,
    Figures,
    FolderView,
    Section,
    cell,
    counted,
    fact,
    lines,
    runs,
    section,
    settings,
    table,
    view,
)
from coa.web.plots import Series, bars, line_plot

Report = Mapping[str, Any]
_MOST_MESSAGES: Final = 12
_BUDGETS: Final = (Stop.STEPS, Stop.TOKENS, Stop.TOOL_CALLS, Stop.CONTEXT, Stop.TIME, Stop.COST)
TRAJECTORIES: Final = "trajectories.jsonl"


def evaluation_view(path: Path) -> FolderView:
    config, (report, wrong) = read_config(path) or {}, read_json(path / "report.json")
    benchmark = mapping((report or config).get("benchmark"))
    made = view("eval", f"Evaluation: {benchmark.get('name') or path.name}", str(benchmark.get("about") or ""))
    build = Builder(made)
    scorer = build.tried("the scorer", lambda: deciding(config)) if "scorer" in config else None
    found = light_runs(path / TRAJECTORIES, scorer)
    _say_what_is_missing(build, path, found, report, wrong)
    if report is None or _grown(report, found):
        report = build.tried("the attempts", lambda: computed(found.runs, config)) or report
    if report is not None:
        _of_report(build, report)
    if found.runs:
        build.add("why attempts did not succeed", lambda: failures(found.runs))
        build.add("tool errors", lambda: tool_errors(found.runs))
    if report is not None:
        build.add("how runs ended", lambda: stops_section(report["stops"]))
        build.add("who wrote how much", lambda: agents_section(report["agents"]))
    if (about := settings(config)) is not None:
        made["sections"].append(about)
    return made


def computed(found: Sequence[LightRun], config: Report) -> dict[str, Any] | None:
    """The figures of the attempts that there are, as report.json would have them; None without an attempt."""
    if not found:
        return None
    benchmark = mapping(config.get("benchmark"))
    tasks = by_task(run.attempt for run in found)
    total = summed_up(tasks.items(), groups=benchmark.get("groups") or GROUPS)
    samples = max(int(number(config.get("samples")) or 1), total.samples)
    planned = max(int(number(benchmark.get("tasks")) or 0), total.counts.tasks)
    figures = total.figures(samples=samples, planned=planned, ks=config.get("ks") or ())
    return {**figures, "benchmark": benchmark, "notices": config.get("notices") or [], "timing": total.times()}


def _say_what_is_missing(build: Builder, path: Path, found: LightRuns, report: Report | None, wrong: str) -> None:
    """`wrong` says why report.json could not be read; it is empty where there is none."""
    if wrong:
        build.problem(f"{wrong} The figures are computed from the attempts." if found.runs else wrong)
    elif report is None:
        state = "the figures are computed from the attempts so far" if found.runs else "there is no attempt yet"
        build.problem(f"There is no report.json yet: {state}.")
    elif _grown(report, found):
        build.problem("The evaluation goes on: the figures are computed from the attempts so far.")
    if found.damaged:
        build.problem(f"{TRAJECTORIES}: {plural(found.damaged, 'damaged record')} left out.")
    if not found.complete:
        build.problem(
            f"Failures are counted in the first {MOST_BYTES >> 20} MB of {TRAJECTORIES}; the list has all runs."
        )
    if (path / "scores.jsonl").is_file() and found.runs:
        build.problem("Verdicts that are still in scores.jsonl are not counted yet.")


def _grown(report: Report, found: LightRuns) -> bool:
    return found.complete and len(found.runs) > int(number(mapping(report.get("results")).get("attempts")) or 0)


# ---- figures


def _of_report(build: Builder, report: Report) -> None:
    made = build.view
    made["notices"] = [str(text) for text in report.get("notices") or ()]
    if said := build.tried("the caveat", lambda: caveat(report)):
        made["notices"].append(said)
    made["facts"] = build.tried("the main figures", lambda: facts(report)) or []
    made["figures"] = build.tried("the figures", lambda: figures_of(report))
    build.add("success", lambda: success_section(report))
    for key, groups in mapping(report.get("breakdown")).items():
        build.add(f"results by {key}", lambda key=key, groups=groups: breakdown(key, groups))  # type: ignore[misc]


def facts(report: Report) -> list[Fact]:
    found, spent = report["results"], report["spent"]
    main = mapping(found["metrics"]).get("pass@1")
    per = spent.get("per_success")
    each = mapping(per)
    every = "" if found["attempts_per_task"] == 1 else f" × {found['attempts_per_task']:,} attempts"
    right = plural(found["right"], "attempt")
    missing = f", {plural(found['missing'], 'attempt')} missing" if found.get("missing") else ""
    shown = [
        fact(
            "pass@1", f"{main['value']:.1%}" if main else "–", f"95 % {_interval(main)}" if main else "no attempt yet"
        ),
        fact("Tasks", f"{found['tasks']:,}{every}", f"{right} right{missing}", runs(outcome="right")),
        fact("Tokens per success", _figure(each.get("total_tokens"), 0), "" if per else "no success"),
    ]
    if (cost := number(each.get("cost"))) is not None:
        shown.append(fact("Cost per success", f"{cost:.4g}"))
    elif per and mapping(spent.get("total")).get("cost") is None:
        shown.append(fact("Cost per success", "–", "no prices were given"))
    shown.append(fact("Tool calls per success", _figure(each.get("tool_calls"), 1)))
    seconds = number(mapping(report.get("timing")).get("seconds_per_attempt"))
    if seconds is not None:
        shown.append(fact("Seconds per attempt", _figure(seconds, 1)))
    return shown


def figures_of(report: Report) -> Figures:
    found, each = report["results"], mapping(mapping(report["spent"]).get("per_success"))
    return Figures(
        tasks=int(found["tasks"]),
        attempts=int(found["attempts"]),
        right=int(found["right"]),
        metrics={
            str(name): Estimated(value=value["value"], low=value.get("low"), high=value.get("high"))
            for name, value in found["metrics"].items()
        },
        tokens_per_success=number(each.get("total_tokens")) or None,
        cost_per_success=number(each.get("cost")),
        tool_calls_per_success=number(each.get("tool_calls")),
    )


def success_section(report: Report) -> Section | None:
    metrics = report["results"]["metrics"]
    rows = [
        (Bar(name, value["value"], percent(value), value["low"], value["high"]), "") for name, value in metrics.items()
    ]
    ks = sorted((int(name[5:]), value["value"]) for name, value in metrics.items() if name[5:].isdecimal())
    curve = None
    if len(ks) > 1:
        curve = line_plot("pass@k", [Series("pass@k", ks)], x_title="attempts at each task (k)", unit="share",
                          about="Chance that at least one of k attempts is right.", bottom=0)  # fmt: skip
    return section("Success", bars("Success with 95 % intervals", rows, most=1.0) if rows else None, curve)


def breakdown(key: str, groups: Mapping[str, Mapping[str, Any]]) -> Section | None:
    rows, cells = [], []
    for name, group in groups.items():
        value = group["pass@1"]
        href = runs(family=name) if key == "family" and name else ""
        note = f"{value['value']:.1%} of {group['attempts']:,}"
        rows.append((Bar(name or "(none)", value["value"], note, value["low"], value["high"]), href))
        tokens = group["tokens_per_success"]
        counts = group["tasks"], group["attempts"], percent(value), group["failed"], group["unscored"]
        cells.append([cell(name or "(none)", href), *counts, None if tokens is None else round(tokens)])
    columns = [key, "tasks", "attempts", "pass@1", "failed", "unscored", "tokens per success"]
    title = "Families" if key == "family" else f"By {key}"
    return section(title, bars(f"pass@1 by {key}", rows, most=1.0), table("Figures", columns, cells, folded=True))


def stops_section(stops: Mapping[str, int]) -> Section | None:
    names = {_words(stop): stop for stop in stops}
    counts = {_words(stop): int(count) for stop, count in stops.items()}
    return section("How runs ended", counted("Runs by stop reason", counts, lambda words: runs(stop=names[words])))


def agents_section(agents: Mapping[str, Any]) -> Section | None:
    written = {str(name): int(count) for name, count in agents["written_tokens"].items()}
    about = "The model reported only the sum; it is split by the length of the texts." if agents.get(
        "shared_out_by_length") else ""  # fmt: skip
    shown = counted("Tokens written by each agent", written, lambda name: runs(agent=name))
    return section("Who wrote how much", shown, about=about)


# ---- failures


def failures(found: Sequence[LightRun]) -> Section | None:
    """Every attempt that is not right, once, by its cause."""
    causes: Counter[str] = Counter()
    links: dict[str, str] = {}
    messages: Counter[tuple[str, str]] = Counter()
    for run in found:
        cause, href = cause_of(run)
        if not cause:
            continue
        causes[cause] += 1
        links[cause] = href
        if (message := run.failure or (run.attempt.why_unscored if run.attempt.unscored else "")) != "":
            messages[cause, message] += 1
    said = [cell(f"{count:,} × {cause}: {text}", links[cause]) for (cause, text), count in messages.most_common()]
    more = len(said) - _MOST_MESSAGES
    listed = said[:_MOST_MESSAGES] + ([cell(f"and {more:,} other messages")] if more > 0 else [])
    return section(
        "Why attempts did not succeed",
        counted("Attempts that are not right, by cause", dict(causes.most_common()), lambda cause: links[cause]),
        lines("Messages", listed, unfolded=True) if listed else None,
        about=f"{plural(sum(causes.values()), 'attempt')} of {len(found):,}.",
    )


def cause_of(run: LightRun) -> tuple[str, str]:
    """Why an attempt is not right, and the filter that finds such attempts; empty for one that is right."""
    attempt = run.attempt
    if attempt.right:
        return "", ""
    if attempt.failed:
        site = f" in the {run.site}" if run.site else ""
        return f"{attempt.stop.words}{site}", runs(stop=attempt.stop.value)
    if attempt.stop in _BUDGETS:
        return attempt.stop.words.replace("stopped: ", ""), runs(
            stop=attempt.stop.value, outcome=_missed(attempt.answered)
        )
    if not attempt.answered:
        return "no answer", runs(outcome="unanswered")
    if attempt.unscored:
        return "not scored", runs(outcome="unscored")
    return ("partly right", runs(outcome="partly")) if attempt.counted > 0 else ("wrong answer", runs(outcome="wrong"))


def _missed(answered: bool) -> str:
    return "wrong,partly,unscored" if answered else "unanswered"


def tool_errors(found: Sequence[LightRun]) -> Section | None:
    counts = Counter(error for run in found for error in run.tool_errors)
    with_any = sum(bool(run.tool_errors) for run in found)
    rows = [
        (Bar(f"{tool or 'no tool'}: {kind.replace('_', ' ')}", count, f"{count:,}"), _tool_link(tool))
        for (tool, kind), count in counts.most_common(20)
    ]
    about = f"In {plural(with_any, 'attempt')} of {len(found):,}."
    return section("Tool errors", bars("Failed tool calls by tool and kind", rows), about=about) if rows else None


def _tool_link(tool: str) -> str:
    return runs(tool_error=1, **({"agent": tool} if tool else {}))


def _words(stop: str) -> str:
    try:
        return Stop(stop).words.replace("stopped: ", "")
    except ValueError:
        return stop


def _interval(value: Mapping[str, float]) -> str:
    return f"[{value['low']:.1%}, {value['high']:.1%}]"


def _figure(value: object, digits: int) -> str:
    found = number(value)
    return "–" if found is None else f"{found:,.{digits}f}"
