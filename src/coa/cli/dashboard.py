"""The screen of `coa demo` in a terminal: its stages, the time left, the curves of training, and the last line of the
stage that runs. What stages print goes into `logs/` of the demo's folder.

It reads what the stages write anyway (`metrics.jsonl`, `report.json`, their output), so a stage needs to know nothing
of it. In a log or a pipe the demo prints the commands and their output one after another instead.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import orjson
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from coa.cli.output import one_line
from coa.cli.terminal import SafeConsole, SafeText
from coa.demo.commands import clock, in_words, time_left
from coa.demo.recipes import DemoStage
from coa.report import plural

_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_CURVES: Final = (("sft", "loss", "fine-tuning loss", "{:.2f}"), ("rl", "success", "solved in RL", "{:.0%}"))
"""Folder, key in its metrics.jsonl, title, and how a value is printed."""
_EXCERPT: Final = 4_096
_TALL: Final = 32
"""Lines of a screen that has room for charts of `_CHART` rows."""
_CHART: Final = 4
_MARK, _RESULT, _TIME = 1, 12, 7
"""Widths of the table's columns."""


class Dashboard:
    """A `coa.demo.commands.Follower` for a person at a terminal."""

    def __init__(self, out: Path, console: Console | None = None) -> None:
        self._out, self._console = out, console or SafeConsole()
        self._stages: Sequence[DemoStage] = ()
        self._done: Mapping[str, float] = {}
        self._running: DemoStage | None = None
        self._began = self._stage_began = time.monotonic()
        self._live = Live(get_renderable=self.screen, console=self._console, refresh_per_second=2)

    def __enter__(self) -> Dashboard:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def stage(self, stages: Sequence[DemoStage], done: Mapping[str, float], stage: DemoStage, command: str) -> None:
        self._stages, self._done, self._running = stages, done, stage
        self._stage_began = time.monotonic()

    def output(self, stage: DemoStage) -> io.FileIO | None:
        """A file for what the stage prints. An attempt to go on adds to it."""
        log = self._log(stage)
        log.parent.mkdir(parents=True, exist_ok=True)
        return io.FileIO(log, "a")

    def failed(self, stage: DemoStage) -> str:
        """The end of the log of a stage that failed, and where the rest is."""
        return f"{tail(self._log(stage))}\nThe whole output is in {self._log(stage)}"

    def screen(self) -> RenderableType:
        """What is on the screen now."""
        gone = time.monotonic() - self._stage_began
        counted = f"{len(self._done)} of {len(self._stages)} stages done"
        left = time_left(self._stages, self._done, self._running, gone)
        parts: list[RenderableType] = [SafeText(f"{counted}, {in_words(left)} left", style="bold"), SafeText()]
        parts += [self._table(gone), SafeText()]
        parts += [SafeText(line, no_wrap=True, overflow="crop") for line in self._curves()]
        if self._running is not None and (line := last_line(self._log(self._running))):
            parts.append(SafeText(f"now: {line}", style="bright_black", no_wrap=True, overflow="ellipsis"))
        parts.append(SafeText("Ctrl-C stops the demo. The same command resumes it.", style="bright_black"))
        return Group(*parts)

    def _table(self, gone: float) -> Table:
        table = Table.grid(padding=(0, 1))
        titles = max((len(stage.about) for stage in self._stages), default=0)
        room = max(self._console.width - _MARK - _RESULT - _TIME - 3, 10)
        table.add_column(width=_MARK)
        table.add_column(width=min(titles, room), no_wrap=True, overflow="ellipsis")
        table.add_column(width=_RESULT, no_wrap=True)
        table.add_column(width=_TIME, no_wrap=True, justify="right")
        for stage in self._stages:
            if (seconds := self._done.get(stage.name)) is not None:
                table.add_row(
                    SafeText("✓", style="green"),
                    SafeText(stage.about),
                    SafeText(_solved(self._out, stage), style="green"),
                    clock(seconds),
                )
            elif stage is self._running:
                bar = ProgressBar(total=stage.seconds, completed=min(gone, 0.97 * stage.seconds), width=_RESULT)
                table.add_row(SafeText("▶"), SafeText(stage.about, style="bold"), bar, clock(gone))
            else:
                table.add_row("", SafeText(stage.about, style="bright_black"), "", "")
        return table

    def _curves(self) -> Iterator[str]:
        """In one line each, or as charts on a screen that has room for them."""
        rows = _CHART if self._console.height >= _TALL else 1
        for folder, key, title, shown in _CURVES:
            values = metric(self._out / folder / "metrics.jsonl", key)
            if values:
                *upper, lowest = chart(values, rows)
                yield from (f"{'':<17} {line}" for line in upper)
                ends = (
                    f"{shown.format(values[0])} → {shown.format(values[-1])}" if values[1:] else shown.format(values[0])
                )
                yield f"{title:<17} {lowest}  {ends}, {plural(len(values), 'step')}"

    def _log(self, stage: DemoStage) -> Path:
        return self._out / "logs" / f"{stage.name}.log"


def chart(values: Sequence[float], rows: int = 1, width: int = 40) -> list[str]:
    """The values as columns of blocks, from the upper row to the lowest, between their smallest and their largest.
    More values than `width` are thinned out; the last one is always shown."""
    if len(values) > width:
        values = [values[round(at * (len(values) - 1) / (width - 1))] for at in range(width)]
    low, high = min(values), max(values)
    steps = rows * (len(_BLOCKS) - 1)
    heights = [1 + min(int((value - low) / ((high - low) or 1.0) * steps), steps - 1) for value in values]
    below = [row * (len(_BLOCKS) - 1) for row in reversed(range(rows))]
    return ["".join(_BLOCKS[min(max(height - start, 0), len(_BLOCKS) - 1)] for height in heights) for start in below]


def metric(file: Path, key: str) -> list[float]:
    """All values of a key in a file of metrics, in order. A line that is still being written is left out."""
    if not file.is_file():
        return []
    rows: list[dict[str, Any]] = []
    for line in file.read_bytes().splitlines():
        try:
            rows.append(orjson.loads(line))
        except orjson.JSONDecodeError:
            continue
    return [float(row[key]) for row in rows if isinstance(row.get(key), int | float)]


def last_line(log: Path) -> str:
    lines = [line for line in tail(log).splitlines() if line.strip()]
    return one_line(lines[-1].strip()) if lines else ""


def tail(log: Path, lines: int = 15) -> str:
    if not log.is_file():
        return ""
    with log.open("rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - _EXCERPT, 0))
        return "\n".join(file.read().decode("utf-8", "replace").splitlines()[-lines:])


def _solved(out: Path, stage: DemoStage) -> str:
    """The success rate that an evaluation measured."""
    report = out / "eval" / stage.name.removeprefix("eval-") / "report.json"
    if not stage.name.startswith("eval-") or not report.is_file():
        return ""
    rate = orjson.loads(report.read_bytes())["results"]["metrics"]["pass@1"]["value"]
    return f"{rate:.1%} solved"
