"""What a page about a run folder consists of. The page draws any folder from these parts, whatever its kind.

Links are written without the id of the folder, which only the index knows; the page completes them:

    step/12                           the groups of an RL step of this folder
    runs?stop=tokens                  the runs of this folder, filtered
    tasks?task=t7                     all runs of a task, in any folder
    in/eval/sft, in/rl/step/12        another folder, by its path from this one, or one of its steps
    compare?in=eval/sft&in=eval/rl    a comparison of other folders
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypedDict, TypeVar
from urllib.parse import urlencode

from coa.report import Bar
from coa.report import said as as_text
from coa.web.plots import Bars, Funnel, LinePlot, bars

T = TypeVar("T")
_LONGEST: Final = 300
BAD_CONTENT: Final = (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError)
"""What code raises that reads a damaged or unknown report."""


class Fact(TypedDict):
    """A figure of most interest, shown large."""

    label: str
    value: str
    note: str
    href: str


class Cell(TypedDict):
    text: str
    href: str


class Table(TypedDict):
    type: Literal["table"]
    title: str
    columns: list[str]
    rows: list[list[Cell]]
    folded: bool


class Lines(TypedDict):
    """Lines of text behind a title that unfolds them."""

    type: Literal["lines"]
    title: str
    lines: list[Cell]
    open: bool


Part = LinePlot | Bars | Funnel | Table | Lines


class Section(TypedDict):
    title: str
    about: str
    parts: list[Part]


class Estimated(TypedDict):
    value: float
    low: float | None
    high: float | None


class Figures(TypedDict):
    """For a comparison with other folders; None is unknown."""

    tasks: int
    attempts: int
    right: int
    metrics: dict[str, Estimated]
    tokens_per_success: float | None
    cost_per_success: float | None
    tool_calls_per_success: float | None


class FolderView(TypedDict):
    kind: str
    title: str
    about: str
    facts: list[Fact]
    sections: list[Section]
    figures: Figures | None
    steps: list[int]
    """Steps of RL whose groups can be looked at."""
    notices: list[str]
    """What readers must know about the figures."""
    problems: list[str]
    """What could not be read, and what is missing."""


def view(kind: str, title: str, about: str = "") -> FolderView:
    return FolderView(
        kind=kind, title=title, about=about, facts=[], sections=[], figures=None, steps=[], notices=[], problems=[]
    )


def fact(label: str, value: str, note: str = "", href: str = "") -> Fact:
    return Fact(label=label, value=value, note=note, href=href)


def cell(text: object, href: str = "") -> Cell:
    shown = "" if text is None else f"{text:,}" if isinstance(text, int) else str(text)
    return Cell(text=shown, href=href)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, folded: bool = False) -> Table:
    """Cells are texts, numbers, or made by `cell`."""
    made = [[_as_cell(item) for item in row] for row in rows]
    return Table(type="table", title=title, columns=list(columns), rows=made, folded=folded)


def lines(title: str, found: Iterable[object], *, unfolded: bool = False) -> Lines:
    return Lines(type="lines", title=title, lines=[_as_cell(item) for item in found], open=unfolded)


def section(title: str, *parts: Part | None, about: str = "") -> Section | None:
    """None without a part."""
    there = [part for part in parts if part is not None]
    return Section(title=title, about=about, parts=there) if there else None


def runs(**filters: object) -> str:
    """A link to the runs of this folder."""
    return f"runs?{urlencode({name: str(value) for name, value in filters.items()})}"


def within(folder: Path, other: str | Path) -> str:
    """A link to another folder; empty if there is none."""
    try:
        there = Path(other).resolve()
        return f"in/{os.path.relpath(there, folder.resolve())}" if there.is_dir() else ""
    except (OSError, ValueError):
        return ""


def counted(title: str, counts: Mapping[str, int], links: Callable[[str], str] = lambda _: "") -> Bars | None:
    """A bar for each count, with its share of all."""
    whole = sum(counts.values())
    rows = [
        (Bar(name, count, f"{count:,} ({count / whole:.1%})"), links(name)) for name, count in counts.items() if count
    ]
    return bars(title, rows, most=whole) if rows else None


def settings(config: Mapping[str, Any] | None, title: str = "Settings") -> Section | None:
    rows = [(name, _shown(value)) for name, value in _flat(config or {}).items()]
    return section(title, table("", ["setting", "value"], rows, folded=True)) if rows else None


class Builder:
    """Adds to a view what can be made of a folder. A part that cannot be made becomes a problem, and the rest stays."""

    def __init__(self, made: FolderView) -> None:
        self.view = made

    def add(self, what: str, make: Callable[[], Section | None]) -> None:
        if (found := self.tried(what, make)) is not None:
            self.view["sections"].append(found)

    def tried(self, what: str, make: Callable[[], T]) -> T | None:
        """The result, or None where the content is not what it should be. `what` is named in the problem."""
        try:
            return make()
        except BAD_CONTENT as error:
            self.problem(f"{what} cannot be shown: {type(error).__name__}: {error}"[:_LONGEST])
            return None

    def problem(self, text: str) -> None:
        if text not in self.view["problems"]:
            self.view["problems"].append(text)


def _as_cell(item: object) -> Cell:
    if isinstance(item, dict) and item.keys() == {"text", "href"}:
        return Cell(text=str(item["text"]), href=str(item["href"]))
    return cell(item)


def _flat(value: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, item in value.items():
        if isinstance(item, Mapping) and item:
            found |= _flat(item, f"{before}{name}.")
        elif item not in (None, [], {}, ""):
            found[f"{before}{name}"] = item
    return found


def _shown(value: object) -> str:
    text = as_text(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
