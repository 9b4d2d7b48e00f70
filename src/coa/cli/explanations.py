"""A team run beside its trajectory in the terminal, for `coa distill --explain`."""

from __future__ import annotations

from typing import Final

from rich.box import HEAVY_HEAD
from rich.text import Text

from coa.cli.output import hanging, one_line
from coa.cli.terminal import SafeConsole, SafeTable, SafeText
from coa.distill.explanation import ExplainedRow, Explanation
from coa.trajectory import Profile, load_profile
from coa.trajectory.shorten import shorten

_WIDE: Final = 100
"""Columns from which two columns are easier to read than one below the other."""
_LONGEST: Final = 800


def show_explanation(found: Explanation, profile: str) -> None:
    console = SafeConsole()
    chosen = load_profile(profile)
    console.print(SafeText(hanging(f"{found.task}: {found.question}"), "bold", lines=True))
    console.print(f"read as {found.source.format} from {found.source.file} {found.source.place}".rstrip())
    if console.width >= _WIDE:
        table = SafeTable(box=HEAVY_HEAD, pad_edge=True, expand=True, show_lines=True)
        table.add_column("the team", ratio=1, overflow="fold")
        table.add_column(f"the trajectory (profile {found.profile}), and why", ratio=1, overflow="fold")
        for row in found.rows:
            table.add_row(_team(row), _own(row, chosen))
        console.print(table)
    else:
        for row in found.rows:
            console.print(_team(row))
            console.print(SafeText("-> ").append_text(_own(row, chosen)))
            console.print()
    for heading, lines in (
        ("hand-overs", found.handovers),
        ("not read", tuple(f"{item.what} {item.place}: {item.reason}" for item in found.left_out)),
        ("inferred", tuple(map(str, _notes(found)))),
    ):
        for line in lines:
            console.print(f"{heading}: {line}")
    if found.dropped is None:
        console.print("coa distill keeps this run, unless it is a duplicate.", style="green")
    else:
        console.print(f"coa distill drops this run. {found.dropped}", style="red")
        console.print(f"hint: {found.advice}")


def _notes(found: Explanation) -> list[object]:
    notes = found.inferred.get("notes")
    return list(notes) if isinstance(notes, list | tuple) else []


def _team(row: ExplainedRow) -> Text:
    said = shorten(row.said, _LONGEST) or f"({row.kind.value})"
    return SafeText(lines=True).append(one_line(f"{row.agent}: "), style="bold").append(hanging(said))


def _own(row: ExplainedRow, profile: Profile) -> Text:
    text = SafeText(lines=True)
    for step in row.steps:
        text.append(one_line(f"{step.index} <{step.agent}> "), style=f"bold {profile.color(step.agent)}")
        text.append(hanging(shorten(step.text, _LONGEST)) + "\n")
    if not row.steps:
        text.append("no step\n", style="bright_black")
    return text.append(one_line("; ".join(row.why)), style="italic bright_black")
