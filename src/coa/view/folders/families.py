"""Families over time: how often each family of tasks was solved at each step of reinforcement learning."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from coa.view.folders.light_runs import light_runs
from coa.view.folders.metric_panels import STEP_LINK
from coa.web.plots import LinePlot, Series, line_plot

GROUPS: Final = "groups"
_MOST_FAMILIES: Final = 10
_MOST_BYTES: Final = 384 << 20
"""As much of the groups is read for this picture; of more, evenly spaced steps."""


class FamilyRow(NamedTuple):
    """One attempt: from the index, or from a file of groups."""

    step: int
    family: str
    right: bool | None
    """None if it is not scored."""


def group_files(path: Path) -> dict[int, Path]:
    """The files of the groups by step."""
    found = {}
    for file in (path / GROUPS).glob("step-*.jsonl"):
        number = file.stem.removeprefix("step-")
        if number.isdecimal():
            found[int(number)] = file
    return dict(sorted(found.items()))


def family_rows(path: Path) -> Iterator[FamilyRow]:
    """Of every attempt in the files of groups. A file is read once, until it changes."""
    files = group_files(path)
    sizes = {step: _size(file) for step, file in files.items()}
    every = max(1, -(-sum(sizes.values()) // _MOST_BYTES))
    for place, (step, file) in enumerate(files.items()):
        if place % every:
            continue
        for run in light_runs(file, "success").runs:
            value = run.attempt.value
            yield FamilyRow(step, run.family, None if value is None else value >= 1)


def families_plot(rows: Iterable[FamilyRow]) -> LinePlot | None:
    """Success by family and step; None where tasks have no families."""
    tried: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for row in rows:
        if row.family and row.right is not None:
            counts = tried[row.family][row.step]
            counts[0] += row.right
            counts[1] += 1
    largest = sorted(tried, key=lambda name: (-sum(count for _, count in tried[name].values()), name))[:_MOST_FAMILIES]
    series = [
        Series(
            name.replace("_", " "),
            [(step, right / count) for step, (right, count) in sorted(tried[name].items())],
            STEP_LINK,
        )
        for name in sorted(largest)
    ]
    left = len(tried) - len(largest)
    more = f" The {left:,} families with the fewest attempts are left out." if left else ""
    about = f"Share of a family's attempts in a step that are right. A point leads to the attempts behind it.{more}"
    return line_plot("Success by family", series, about=about, unit="share", bottom=0.0, top=1.0)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
