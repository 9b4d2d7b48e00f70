"""Plots as data: where every line, tick and bar lies. The page makes elements of it, so no markup travels.

A line plot fills a box of `WIDTH` by `HEIGHT` that the page stretches to the room there is; labels are text beside it,
so their size does not change. A series with many points is thinned to the lowest and the highest point of each column
of pixels, which looks the same as all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import cycle, groupby
from math import ceil, floor, log10
from typing import Final, Literal, NamedTuple, NotRequired, TypedDict

from coa.report import Bar

WIDTH: Final = 1000
HEIGHT: Final = 300
COLUMNS: Final = 250
"""Columns of pixels; a series keeps at most two points in each."""
DOTS: Final = 60
"""Up to this number of points, each is drawn as a dot."""
HUES: Final = ("blue", "orange", "green", "magenta", "cyan", "red", "violet", "yellow", "teal", "lime", "gray")
_SMOOTHED: Final = 12
"""Number of points from which on a moving mean is offered."""
_BEYOND: Final = 1.25
"""An interval without an upper end is drawn to this multiple of the largest number, with an arrow."""

_LARGEST: Final = 1e300
"""Of larger numbers, differences and sums are infinite."""

Unit = Literal["number", "share", "seconds"]
Values = Sequence[tuple[float, float | None]]
"""Pairs of x and y in rising order of x; None is a gap."""


class Series(NamedTuple):
    """Values over x in rising order. None, NaN and infinities are gaps in the line."""

    name: str
    points: Values
    href: str = ""
    """Where a point leads to, with `{x}` for its x; empty for no link."""


class Tick(TypedDict):
    at: float
    """Place on the axis, from 0 (left or bottom) to 1."""
    label: str


Point = tuple[float, float, str, str]
"""Place in the box (x, y), and x and value as text."""


class Drawing(TypedDict):
    path: str
    smooth: str
    """The moving mean; empty where there are too few points for one."""
    points: list[Point]


class PlotSeries(TypedDict):
    name: str
    hue: str
    href: str
    last: str
    """The last value as text."""


class Scale(TypedDict):
    ticks: list[Tick]
    drawings: list[Drawing]
    """One for each series."""


class LinePlot(TypedDict):
    type: Literal["plot"]
    title: str
    about: str
    box: tuple[int, int]
    x_title: str
    x_ticks: list[Tick]
    series: list[PlotSeries]
    linear: Scale
    log: Scale | None
    """With a logarithmic scale, where the values spread widely enough for one."""
    window: int
    """Number of points in the moving mean; 0 without one."""
    dots: bool
    thinned: int
    """Number of points before they were thinned; 0 if all are there."""


class BarRow(TypedDict):
    label: str
    note: str
    fill: float
    """Width in percent of the track."""
    interval: tuple[float, float] | None
    open: bool
    """Whether the interval has no upper end."""
    href: str
    hue: NotRequired[str]


class Bars(TypedDict):
    type: Literal["bars"]
    title: str
    rows: list[BarRow]


class FunnelRow(TypedDict):
    label: str
    note: str
    fill: float
    """Width in percent of the track, centred."""
    lost: float
    """Width of what entered."""
    href: str


class Funnel(TypedDict):
    type: Literal["funnel"]
    title: str
    rows: list[FunnelRow]


# ---- lines


def line_plot(
    title: str,
    series: Sequence[Series],
    *,
    about: str = "",
    x_title: str = "step",
    unit: Unit = "number",
    bottom: float | None = None,
    top: float | None = None,
    log: bool = False,
) -> LinePlot | None:
    """None without a single value to draw. `bottom` and `top` are values that the scale reaches in any case."""
    cleaned = [(one, _finite(one.points)) for one in series]
    there = [(one, points) for one, points in cleaned if any(y is not None for _, y in points)]
    if not there:
        return None
    left = min(points[0][0] for _, points in there)
    right = max(points[-1][0] for _, points in there)
    longest = max(len(points) for _, points in there)
    window = _window(longest)
    # Thinning keeps the extremes, so everything after it is as it would be with all points.
    smoothed = [thinned(moving_mean(points, window), COLUMNS, left, right) if window else [] for _, points in there]
    shown = [Series(one.name, thinned(points, COLUMNS, left, right), one.href) for one, points in there]
    across = _Axis(left, right, WIDTH)
    values = [y for one in shown for _, y in one.points if y is not None]
    low, high = _range([*values, *(end for end in (bottom, top) if end is not None)])
    return LinePlot(
        type="plot", title=title, about=about, box=(WIDTH, HEIGHT), x_title=x_title,
        x_ticks=[Tick(at=across.at(x), label=said(x)) for x in _whole_ticks(left, right)],
        series=[
            PlotSeries(name=one.name or "(none)", hue=hue, href=one.href, last=said(_last(points), unit))
            for (one, points), hue in zip(there, cycle(HUES), strict=False)
        ],
        linear=_scale(shown, smoothed, across, _Axis(low, high, HEIGHT), ticks(low, high), unit),
        log=_log_scale(shown, smoothed, across, values, unit) if log else None,
        window=window,
        dots=longest <= DOTS,
        thinned=longest if longest > 2 * COLUMNS else 0,
    )  # fmt: skip


def said(value: float, unit: Unit = "number") -> str:
    """A value as people read it."""
    if unit == "share":
        return f"{value:.1%}"
    if unit == "seconds":
        return f"{value:,.0f} s" if abs(value) >= 100 else f"{value:.3g} s"
    if value == round(value) and abs(value) < 1e9:
        return f"{value:,.0f}"
    if 1000 <= abs(value) < 1e9:
        return f"{value:,.1f}"
    return f"{value:.3g}"


def moving_mean(points: Values, window: int) -> list[tuple[float, float | None]]:
    """The mean over up to `window` points around each one; gaps stay gaps and are in no mean."""
    half = window // 2
    sums, counts = [0.0], [0]
    for _, y in points:
        sums.append(sums[-1] + (y or 0.0))
        counts.append(counts[-1] + (y is not None))
    found: list[tuple[float, float | None]] = []
    for at, (x, y) in enumerate(points):
        start, end = max(at - half, 0), min(at + half + 1, len(points))
        found.append((x, None if y is None else (sums[end] - sums[start]) / (counts[end] - counts[start])))
    return found


def thinned(points: Values, columns: int, left: float, right: float) -> list[tuple[float, float | None]]:
    """At most the lowest and the highest point of each column, in their order, and one gap where a column has any."""
    if len(points) <= 2 * columns:
        return list(points)
    scale = columns / ((right - left) or 1)
    kept: list[tuple[float, float | None]] = []
    column: list[tuple[float, float | None]] = []
    last = 0
    for point in points:
        here = min(int((point[0] - left) * scale), columns - 1)
        if here != last:
            kept += _extremes(column)
            column, last = [], here
        column.append(point)
    return kept + _extremes(column)


def _extremes(column: Values) -> list[tuple[float, float | None]]:
    values = [y for _, y in column if y is not None]
    gap = [next(point for point in column if point[1] is None)] if len(values) < len(column) else []
    if not values:
        return gap
    low, high = min(values), max(values)
    first = next(point for point in column if point[1] == low)
    second = next(point for point in column if point[1] == high)
    ends = [first] if first is second else sorted((first, second), key=lambda point: point[0])
    return gap + ends


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers within a range."""
    if high <= low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** floor(log10(rough))
    step = next(unit * power for unit in (1, 2, 5, 10) if unit * power >= rough * (1 - 1e-9))
    return [number * step for number in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]


class _Axis(NamedTuple):
    low: float
    high: float
    length: float

    def at(self, value: float) -> float:
        return round((value - self.low) / (self.high - self.low), 4) if self.high > self.low else 0.5

    def place(self, value: float) -> float:
        return round(self.at(value) * self.length, 1)


def _scale(
    series: Sequence[Series],
    smoothed: Sequence[Values],
    across: _Axis,
    up: _Axis,
    marks: Iterable[float],
    unit: Unit,
    measure: Callable[[float], float] = float,
) -> Scale:
    """`measure` turns a value into its place on the axis `up`."""

    def places(points: Values) -> list[Point | None]:
        return [
            None if y is None else (across.place(x), round(HEIGHT - up.place(measure(y)), 1), said(x), said(y, unit))
            for x, y in points
        ]

    drawings = []
    for one, mean in zip(series, smoothed, strict=True):
        points = places(one.points)
        drawings.append(
            Drawing(path=_path(points), smooth=_path(places(mean)), points=[spot for spot in points if spot])
        )
    return Scale(ticks=[Tick(at=up.at(measure(mark)), label=_short(mark, unit)) for mark in marks], drawings=drawings)


def _log_scale(
    series: Sequence[Series], smoothed: Sequence[Values], across: _Axis, values: Sequence[float], unit: Unit
) -> Scale | None:
    positive = [value for value in values if value > 0]
    if len(positive) < max(0.9 * len(values), 2) or max(positive) < 10 * min(positive):
        return None
    low, high = log10(min(positive)), log10(max(positive))
    up = _Axis(low - (high - low) * 0.04, high + (high - low) * 0.04, HEIGHT)
    every = max(1, ceil((high - low) / 5))
    marks = [10.0**power for power in range(ceil(up.low), floor(up.high) + 1, every)]
    drawable = [Series(one.name, _positive(one.points)) for one in series]
    return _scale(drawable, [_positive(one) for one in smoothed], across, up, marks, unit, log10)


def _positive(points: Values) -> Values:
    return [(x, y if y is not None and y > 0 else None) for x, y in points]


def _path(places: Sequence[Point | None]) -> str:
    """Lines through the places; a point between two gaps is a line of no length, which round ends make a dot."""
    parts = []
    for there, group in groupby(places, key=lambda place: place is not None):
        if there:
            spots = [f"{place[0]:g} {place[1]:g}" for place in group if place is not None]
            parts.append("M" + "L".join(spots) + ("h0" if len(spots) == 1 else ""))
    return "".join(parts)


def _range(values: Sequence[float]) -> tuple[float, float]:
    """The ends of a scale: it begins at 0 unless the values lie far from it."""
    low, high = min(values), max(values)
    if low > 0 and low < 0.6 * high:
        low = 0.0
    if high < 0 and high > 0.6 * low:
        high = 0.0
    if low == high:
        spread = abs(low) or 1.0
        return (0.0, low * 1.25) if low > 0 else (low - spread * 0.25, high + spread * 0.25)
    return low, high + (high - low) * 0.05 if high not in (0.0, 1.0) else high


def _whole_ticks(left: float, right: float) -> list[float]:
    marks = [mark for mark in ticks(left, right, 5) if mark == round(mark)]
    return marks or [left]


def _window(points: int) -> int:
    return max(5, points // 20) | 1 if points >= _SMOOTHED else 0


def _last(points: Values) -> float:
    return next(y for _, y in reversed(points) if y is not None)


def _finite(points: Values) -> Values:
    return [(x, y if y is not None and -_LARGEST < y < _LARGEST else None) for x, y in points]


def _short(value: float, unit: Unit) -> str:
    """For the axis."""
    if unit == "share":
        return f"{100 * value:.3g}%"
    value = float(f"{value:.6g}")
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.3g}{letter}"
    return f"{value:,.0f}" if value == round(value) else f"{value:.3g}"


# ---- bars and funnels


def bars(title: str, rows: Sequence[tuple[Bar, str]], *, most: float | None = None, hues: Sequence[str] = ()) -> Bars:
    """Horizontal bars, each with its link, on a scale from 0 to `most`, or to the largest value or interval end."""
    largest = max((bar.reach * (_BEYOND if bar.open else 1) for bar, _ in rows), default=0)
    scale = 100 / (max(most or 0, largest) or 1)
    found = []
    for number, (bar, href) in enumerate(rows):
        end = 100.0 if bar.open or bar.high is None else min(bar.high * scale, 100)
        interval = None if bar.low is None else (round(bar.low * scale, 2), round(end, 2))
        fill = round(max(bar.value, 0) * scale, 2)
        row = BarRow(label=bar.label, note=bar.note or said(bar.value), fill=fill, interval=interval,
                     open=bar.open, href=href)  # fmt: skip
        if hues:
            row["hue"] = hues[number]
        found.append(row)
    return Bars(type="bars", title=title, rows=found)


def funnel(title: str, start: tuple[str, int], stages: Sequence[tuple[str, int, int]]) -> Funnel:
    """What enters, then each stage as (name, in, kept)."""
    scale = 100 / max(start[1], 1)
    rows = [FunnelRow(label=start[0], note=f"{start[1]:,}", fill=100.0 if start[1] else 0.0, lost=0.0, href="")]
    for name, there, kept in stages:
        lost = f" (−{there - kept:,})" if there > kept else ""
        fill, entered = (round(min(max(count, 0) * scale, 100), 2) for count in (kept, there))
        rows.append(FunnelRow(label=name, note=f"{kept:,}{lost}", fill=fill, lost=entered, href=""))
    return Funnel(type="funnel", title=title, rows=rows)
