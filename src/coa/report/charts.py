"""Three pictures: bars, with intervals where there are any, a funnel, and a curve.

Bars and funnels are plain elements that a style sheet lays out, so their text keeps its size on a phone, where labels
move above the bars. A curve is an SVG that stretches to the width of the page, with its labels beside it as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import inf, isfinite
from typing import Final

_BEYOND: Final = 1.25
"""An interval without an upper end is drawn to this multiple of the largest number, with an arrow."""


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    value: float
    note: str = ""
    """Written beside the bar; the value itself where empty."""
    low: float | None = None
    """Lower end of an interval around the value; None without an interval."""
    high: float | None = None
    """Upper end; None or infinite where the interval has none."""

    @property
    def open(self) -> bool:
        """Whether its interval has no upper end."""
        return self.low is not None and (self.high is None or not isfinite(self.high))

    @property
    def reach(self) -> float:
        """The largest finite number of it."""
        return max([self.value, *(end for end in (self.low, self.high) if end is not None and isfinite(end))])


def bars(rows: Sequence[Bar], *, title: str, most: float | None = None) -> str:
    """Horizontal bars on a scale from 0 to `most`, or to the largest value or interval end if that is more."""
    largest = max((row.reach * (_BEYOND if row.open else 1) for row in rows), default=0)
    scale = 100 / (max(most or 0, largest) or 1)
    parts = []
    for row in rows:
        inside = _box("fill", 0, max(row.value, 0) * scale)
        if row.low is not None:
            end = inf if row.high is None else row.high
            inside += _box("interval open" if row.open else "interval", row.low * scale, min(end * scale, 100))
        parts.append(_row(row.label, row.note or f"{row.value:g}", inside))
    return _figure(title, parts)


def funnel(start: tuple[str, int], stages: Sequence[tuple[str, int, int]], *, title: str) -> str:
    """What enters, then for each stage (name, in, kept): centred bars that narrow, with what each one dropped."""
    scale = 100 / max(start[1], 1)

    def centred(name: str, count: int) -> str:
        return _box(name, 50 - count * scale / 2, 50 + count * scale / 2)

    parts = [_row(start[0], f"{start[1]:,}", centred("fill", start[1]))]
    for name, there, kept in stages:
        lost = f" (−{there - kept:,})" if there > kept else ""
        parts.append(_row(name, f"{kept:,}{lost}", centred("lost", there) + centred("fill", kept)))
    return _figure(title, parts)


def curve(points: Sequence[tuple[float, float]], *, title: str, shown: str = "{:.3g}") -> str:
    """A line through (x, y), on a scale from the smaller of 0 and the lowest value to the highest one."""
    if not points:
        return ""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low, high = min(0.0, *ys), max(ys)
    across, up = 100 / ((max(xs) - min(xs)) or 1), 100 / ((high - low) or 1)
    places = [f"{(x - min(xs)) * across:.2f} {100 - (y - low) * up:.2f}" for x, y in points]
    dots = "".join(f"M{place}h0" for place in places)  # of no length: round ends make dots of them
    svg = (
        f'<svg viewBox="0 0 100 100" preserveAspectRatio="none" role="img"><title>{escape(title)}</title>'
        f'<path class="line" d="M{"L".join(places)}"/><path class="dots" d="{dots}"/></svg>'
    )
    ends = [escape(shown.format(value)) for value in (high, low)]
    steps = [f"{value:g}" for value in (min(xs), max(xs))]
    return (
        f'<figure class="curve"><span class="y">{ends[0]}</span><span class="y low">{ends[1]}</span>{svg}'
        f'<span class="x">{steps[0]}</span><span class="x last">{steps[1]}</span></figure>'
    )


def _figure(title: str, rows: Sequence[str]) -> str:
    inside = "\n".join(rows)
    return f'<figure class="bars" role="group" aria-label="{escape(title)}">\n{inside}\n</figure>'


def _row(label: str, note: str, inside: str) -> str:
    return (
        f'<span class="label">{escape(label)}</span><span class="note">{escape(note)}</span>'
        f'<span class="track">{inside}</span>'
    )


def _box(name: str, start: float, end: float) -> str:
    """A box from one percentage of the track to another."""
    return f'<span class="{name}" style="left: {start:.2f}%; width: {max(end - start, 0):.2f}%"></span>'
