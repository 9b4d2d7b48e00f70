"""A distillation: the funnel from the team's runs to training data, and why runs were dropped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from coa.folder import read_config
from coa.report import plural
from coa.view.folders.files import mapping, read_json
from coa.view.folders.parts import (
    Builder,
    FolderView,
    Lines,
    Section,
    counted,
    fact,
    lines,
    runs,
    section,
    settings,
    table,
    view,
)
from coa.web.plots import Funnel, funnel

Report = Mapping[str, Any]
_MOST: Final = 200


def distillation_view(path: Path) -> FolderView:
    made = view("distill", f"Distillation: {path.name}")
    build = Builder(made)
    report, wrong = read_json(path / "report.json")
    if report is None:
        build.problem(wrong or "There is no report.json yet: it is written when the distillation ends.")
    else:
        build.tried("the summary", lambda: _summary(made, report))
        build.add("the funnel", lambda: section("From the team's runs to training data", funnel_of(report)))
        build.add("the reasons", lambda: _reasons(report))
        build.add("the formats", lambda: _formats(report))
        build.add("the roles", lambda: _roles(report))
        build.add("the inferred links", lambda: _decisions(report))
    if (about := settings(read_config(path))) is not None:
        made["sections"].append(about)
    return made


def funnel_of(report: Report) -> Funnel | None:
    stages = [(str(stage["stage"]), int(stage["in"]), int(stage["kept"])) for stage in report["stages"]]
    return funnel("Trajectories kept by each stage", ("runs read", stages[0][1]), stages) if stages else None


def _summary(made: FolderView, report: Report) -> None:
    read, written = report["read"], report["written"]
    entered = int(read["team_runs"]) + int(read["trajectories"])
    share = f"{written['trajectories'] / entered:.1%}" if entered else ""
    made["about"] = f"Runs of a team, re-expressed as runs of one model under the profile {report['profile']}."
    made["facts"] = [
        fact("Runs read", f"{entered:,}", f"{read['unreadable']:,} places unreadable" if read["unreadable"] else ""),
        fact("Kept", f"{written['trajectories']:,}", share, runs()),
        fact("Rows written", f"{written['rows']:,}", "runs that corrected themselves are repeated"
             if written["rows"] != written["trajectories"] else ""),
        fact("Corrected themselves", f"{report['corrected_themselves']:,}"),
        fact("Shortened", f"{report['shortened']:,}", "runs with shortened observations"),
    ]  # fmt: skip
    made["notices"] = [str(text) for text in (*(report.get("notes") or ()), *(report.get("hints") or ()))]


def _reasons(report: Report) -> Section | None:
    parts: list[Lines] = []
    counts: dict[str, int] = {}
    for stage in report["stages"]:
        for reason, kept in stage["reasons"].items():
            found = kept if isinstance(kept, dict) else {"count": kept}  # a version that kept no examples
            name = f"{stage['stage']}: {reason}"
            counts[name] = int(found["count"])
            examples = [
                f"{example['task']}: {example['question']} — {example['detail']}"
                + (f" [{example['source']}]" if example.get("source") else "")
                for example in found.get("examples", ())
            ]
            if examples:
                parts.append(lines(f"{name}, {found['count']:,}", examples))
    places = [
        f"{place['file']} {place['place']}: {place['reason']}" if isinstance(place, dict) else str(place)
        for place in report["read"]["unreadable_places"]
    ]
    if places:
        parts.append(lines(f"unreadable: {report['read']['unreadable']:,}", places[:_MOST]))
    ordered = dict(sorted(counts.items(), key=lambda item: -item[1]))
    return section("Why runs were dropped", counted("Dropped runs by stage and reason", ordered), *parts,
                   about="Each reason with up to three examples." if parts else "")  # fmt: skip


def _formats(report: Report) -> Section | None:
    found = {str(name): int(count) for name, count in mapping(report["read"].get("formats")).items()}
    return section("Formats of the traces", counted("Runs by format", found)) if len(found) > 1 else None


def _roles(report: Report) -> Section | None:
    rows = [
        [name, role, count] for name, kinds in mapping(report.get("roles")).items() for role, count in kinds.items()
    ]
    shown = table("", ["agent or tool of the team", "became", "runs"], rows[:_MOST])
    return section("Roles of agents and tools, and what decided them", shown) if rows else None


def _decisions(report: Report) -> Section | None:
    found = mapping(report.get("inferred")).get("decisions") or ()
    listed = [f"{item['run']}: {item['decision']}" if isinstance(item, dict) else str(item) for item in found]
    title = f"Decisions about agents and hand-overs: {len(listed):,}"
    about = plural(int(report.get("failed_handovers") or 0), "hand-over") + " that failed are left out."
    return section("Inferred", lines(title, listed[:_MOST]), about=about) if listed else None
