"""The output of a sampling: the kept tasks, the dropped ones with their reasons, and a report as JSON and as a page."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from coa.folder import claim, replacing, write_atomic
from coa.report import Bar, bars, details, funnel, page, paragraph, plural, said, section, table
from coa.sampling.difficulty import Fate, Rules, histogram
from coa.sampling.outcomes import Sampled
from coa.trajectory.formats.rows import write_rows
from coa.trajectory.formats.tasks import from_task
from coa.version import __version__

MEANING: Final = {
    Fate.IN_SFT_DATA: "the question is in the data given with --exclude",
    Fate.TOOLS_NOT_NEEDED: "solved without tools too often",
    Fate.UNSCORED: "fewer than half of the attempts could be scored: neither solved nor failed",
    Fate.ALWAYS_SOLVED: "every scored attempt with tools solved it",
    Fate.NEVER_SOLVED: "no scored attempt with tools solved it",
}
"""In the order in which the rules are applied."""
_EXAMPLES: Final = 5
_HINTS: Final = {
    Fate.IN_SFT_DATA: "sample tasks that --exclude does not hold",
    Fate.TOOLS_NOT_NEEDED: "raise --max-without-tools, or skip that test with --no-tools-samples 0",
    Fate.ALWAYS_SOLVED: "take harder tasks",
    Fate.NEVER_SOLVED: "take easier tasks or a better model, or keep them with --keep-unsolved",
    Fate.UNSCORED: "give the tasks right answers, or add --judge URL; --retry-failed makes attempts that broke again",
}


def hint(data: Mapping[str, Any]) -> str:
    """What to do where no task was kept, by the commonest reason."""
    return _HINTS[Fate(max(data["dropped"], key=data["dropped"].__getitem__))]


def folder_beside(out: Path) -> Path:
    """Where attempts and reports of the tasks in `out` are kept."""
    return out.with_suffix(".sampling")


def hold_settings(folder: Path, settings: Mapping[str, Any], rules: Rules) -> None:
    """Write config.json; refuse a folder whose attempts were made with other settings: their rates do not compare."""
    record = {"coa": __version__, "settings": settings, "rules": rules.model_dump(mode="json")}
    hints = {"shard": "give each shard a separate --out"}
    claim(folder, "sample", record, settings="settings", renew=True, hints=hints)


def write_tasks(out: Path, found: Sequence[Sampled], **models: str) -> int:
    """Write the kept tasks with their rates, and beside them the dropped ones; return how many were kept."""
    kept = [item for item in found if item.fate is Fate.KEPT]
    dropped = [
        {
            "id": item.task.id, "question": item.task.question, "dropped": item.fate.value, "reason": item.reason,
            "with_tools": item.with_tools.to_json(), "without_tools": item.without.to_json(),
        }
        for item in found
        if item.fate is not Fate.KEPT
    ]  # fmt: skip
    if kept:
        with replacing(out) as part:
            write_rows(part, (orjson.dumps(from_task(item.measured(**models))) for item in kept))
    else:
        out.unlink(missing_ok=True)  # else an older selection would look like this one
    write_rows(folder_beside(out) / "dropped.jsonl", map(orjson.dumps, dropped))
    return len(kept)


def report(found: Sequence[Sampled], rules: Rules, settings: Mapping[str, Any]) -> dict[str, Any]:
    fates = Counter(item.fate for item in found)
    # A rate with too few scored attempts to decide a task is not drawn either.
    acted = [item.with_tools for item in found if item.fate is not Fate.UNSCORED]
    asked = [item.without for item in found if item.fate is not Fate.UNSCORED or item.with_tools.attempts]
    return {
        "settings": dict(settings),
        "rules": rules.model_dump(mode="json"),
        "tasks": len(found),
        "kept": fates[Fate.KEPT],
        "dropped": {fate.value: fates[fate] for fate in MEANING if fates[fate]},
        "solved_with_tools": histogram(acted, rules.samples),
        "solved_without_tools": histogram(asked, rules.no_tools_samples),
        "attempts": sum(item.with_tools.attempts + item.without.attempts for item in found),
        "unscored_attempts": sum(item.with_tools.unscored + item.without.unscored for item in found),
    }


def write_report(folder: Path, found: Sequence[Sampled], rules: Rules, settings: Mapping[str, Any]) -> dict[str, Any]:
    data = report(found, rules, settings)
    write_atomic(folder / "report.json", json.dumps(data, indent=2, ensure_ascii=False) + "\n")
    write_atomic(folder / "report.html", _html(folder, found, data, rules))
    return data


def _html(folder: Path, found: Sequence[Sampled], data: Mapping[str, Any], rules: Rules) -> str:
    stages, left = [], len(found)
    for fate in MEANING:
        lost = data["dropped"].get(fate.value, 0)
        stages.append((fate.value, left, left - lost))
        left -= lost
    dropped = [(fate.value, count, why) for fate, why in MEANING.items() if (count := data["dropped"].get(fate.value))]
    examples = []
    for fate in MEANING:
        if some := [item for item in found if item.fate is fate]:
            lines = [f"{item.task.id}: {item.task.question[:300]} — {item.reason}" for item in some[:_EXAMPLES]]
            examples.append(details(f"{fate.value}, {len(some):,}", lines))
    settings = [(key, said(value)) for key, value in [*data["settings"].items(), *data["rules"].items()]]
    without = _bars(data["solved_without_tools"], rules.no_tools_samples, "tasks by attempts solved without tools")
    return page(
        "Query sampling",
        paragraph(
            f"{data['kept']:,} of {plural(len(found), 'task')} kept, after {plural(data['attempts'], 'attempt')}, "
            f"of which {data['unscored_attempts']:,} could not be scored and count neither as solved nor as failed."
        ),
        funnel(("tasks", len(found)), stages, title="tasks left after each rule"),
        section(
            "Solved with tools",
            _bars(data["solved_with_tools"], rules.samples, "tasks by attempts solved with tools"),
        ),
        section("Solved without tools", without if rules.no_tools_samples else ""),
        section("Why tasks were dropped", table(["dropped as", "tasks", "because"], dropped), *examples),
        section("Settings", table(["setting", "value"], settings)),
        run=folder,
    )


def _bars(counts: Sequence[int], samples: int, title: str) -> str:
    return bars([Bar(f"{solved} of {samples}", count) for solved, count in enumerate(counts)], title=title)
