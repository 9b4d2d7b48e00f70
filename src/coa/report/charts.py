"""Three pictures as inline SVG: bars, with intervals where there are any, a funnel, and a curve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

_WIDTH: Final = 900
_ROW: Final = 44
_LEFT: Final = 170
_RIGHT: Final = 150
_LETTER: Final = 8.0
"""Approximate width of a letter."""


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    value: float
    note: str = ""
    """Written after the bar; the value itself where empty."""
    low: float | None = None
    high: float | None = None
    """Ends of an interval around the value."""


def bars(rows: Sequence[Bar], *, title: str, most: float | None = None) -> str:
    """Horizontal bars on a scale from 0 to `most`, or to the largest value or interval end."""
    ends = [end for row in rows for end in (row.value, row.high) if end is not None]
    right = max([_RIGHT, *(14 + _LETTER * len(row.note) for row in rows)])
    scale = (_WIDTH - _LEFT - right) / (most or max(ends, default=0) or 1)
    parts = []
    for number, row in enumerate(rows):
        top = number * _ROW
        width = max(row.value, 0) * scale
        parts.append(_text(_LEFT - 12, top, row.label, anchor="end"))
        parts.append(_rectangle(_LEFT, top + 8, width, _ROW - 20, "var(--keep)"))
        if row.low is not None and row.high is not None:
            middle, low, high = top + _ROW / 2 - 2, _LEFT + row.low * scale, _LEFT + row.high * scale
            parts.append(f'<path d="M{low:.1f} {middle:.1f}H{high:.1f}" stroke="currentColor" stroke-width="2"/>')
        beyond = max(width, (row.high or 0) * scale)
        parts.append(_text(_LEFT + beyond + 10, top, row.note or f"{row.value:g}"))
    return _svg(title, len(rows) * _ROW, parts)


def funnel(start: tuple[str, int], stages: Sequence[tuple[str, int, int]], *, title: str) -> str:
    """What enters, then for each stage (name, in, kept): centred bars that narrow, with what each one dropped."""
    scale = (_WIDTH - _LEFT - _RIGHT) / max(start[1], 1)
    centre = _LEFT + (_WIDTH - _LEFT - _RIGHT) / 2
    parts = [_text(_LEFT - 12, 0, start[0], anchor="end"), _text(_WIDTH - _RIGHT + 12, 0, f"{start[1]:,}")]
    parts.append(_rectangle(centre - start[1] * scale / 2, 8, start[1] * scale, _ROW - 20, "var(--keep)"))
    for number, (name, there, kept) in enumerate(stages, start=1):
        top, before, after = number * _ROW, there * scale, kept * scale
        edge = top - _ROW + 8 + _ROW - 20
        shape = (
            f"M{centre - before / 2:.1f} {edge}H{centre + before / 2:.1f}L{centre + after / 2:.1f} {top + 8}"
            f"H{centre - after / 2:.1f}Z"
        )
        parts.append(f'<path d="{shape}" style="fill: var(--soft)"/>')
        parts.append(_rectangle(centre - before / 2, top + 8, before, _ROW - 20, "var(--drop)", opacity=0.35))
        parts.append(_rectangle(centre - after / 2, top + 8, after, _ROW - 20, "var(--keep)"))
        lost = f" (−{there - kept:,})" if there > kept else ""
        parts.append(_text(_LEFT - 12, top, name, anchor="end"))
        parts.append(_text(_WIDTH - _RIGHT + 12, top, f"{kept:,}{lost}"))
    return _svg(title, (len(stages) + 1) * _ROW, parts)


def curve(points: Sequence[tuple[float, float]], *, title: str, shown: str = "{:.3g}") -> str:
    """A line through (x, y), on a scale from the smaller of 0 and the lowest value to the highest one."""
    if not points:
        return ""
    height, left, right, top = 200.0, 70.0, _WIDTH - 30.0, 14.0
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low, high = min(0.0, *ys), max(ys)
    across, up = (right - left) / ((max(xs) - min(xs)) or 1), (height - top) / ((high - low) or 1)
    places = [(left + (x - min(xs)) * across, height - (y - low) * up) for x, y in points]
    line = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    parts = [f'<path d="M{left} {top}V{height}H{right}" stroke="var(--line)" fill="none"/>']
    parts.append(f'<path d="M{line}" stroke="var(--keep)" stroke-width="2" fill="none"/>')
    parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" style="fill: var(--keep)"/>' for x, y in places]
    parts += [
        _text(left - 8, y - _ROW / 2, shown.format(value), anchor="end") for value, y in ((high, top), (low, height))
    ]
    parts += [
        _text(x, height - 4, f"{value:g}", anchor="middle") for value, x in ((min(xs), left), (max(xs), right - 8))
    ]
    return _svg(title, height + 34, parts)


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    inside = "\n".join(parts)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" width="{_WIDTH}" height="{height:.0f}" role="img">\n'
        f"<title>{escape(title)}</title>\n{inside}\n</svg>"
    )


def _rectangle(x: float, y: float, width: float, height: float, color: str, *, opacity: float = 1) -> str:
    faint = f' opacity="{opacity}"' if opacity < 1 else ""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="3" style="fill: {color}"{faint}/>'
    )


def _text(x: float, top: float, text: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{top + _ROW / 2 + 3:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
