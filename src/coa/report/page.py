"""HTML from plain values. Everything is escaped here, so callers pass text and get markup."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final
from urllib.parse import quote

from coa.addresses import VIEWER_PORT
from coa.report.origin import origin

_STYLE: Final = """
:root { color-scheme: light dark; --line: #8885; --soft: #8882; --keep: #3a7d5d; --drop: #c2703d; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  overflow-wrap: break-word; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; margin: .5rem 0; }
td, th { padding: .25rem .75rem; border-bottom: 1px solid var(--line); vertical-align: top; }
td { max-width: 28rem; overflow-wrap: break-word; } td.long { min-width: 14rem; }
th { text-align: left; } td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
details { margin: .3rem 0; } details > div { padding: .3rem 0 .3rem 1rem; border-left: 3px solid var(--soft); }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: .2rem 0 .6rem; font-size: .85rem; }
.scroll { overflow-x: auto; } .origin { font-size: .85rem; opacity: .8; margin: 0; overflow-wrap: anywhere; }
.notice { border-left: 4px solid var(--drop); padding: .3rem .8rem; background: var(--soft); }
figure { margin: .8rem 0; font-size: .9rem; }
.bars { display: grid; grid-template-columns: fit-content(12rem) 1fr auto; grid-auto-flow: dense; gap: .7rem .8rem;
  align-items: center; }
.label { grid-column: 1; text-align: right; overflow-wrap: anywhere; } .note { grid-column: 3; }
.track { grid-column: 2; position: relative; height: 1.5rem; }
.track span { position: absolute; top: 0; height: 100%; border-radius: 3px; }
.fill { background: var(--keep); } .lost { background: var(--drop); opacity: .35; }
.track .interval { top: calc(50% - 1px); height: 2px; background: currentColor; border-radius: 0; }
.open::after { content: ""; position: absolute; right: -1px; top: -5px; border: 6px solid transparent;
  border-left: 9px solid currentColor; border-right: 0; }
.curve { display: grid; grid-template-columns: auto 1fr auto; grid-template-rows: 1fr auto auto; gap: 0 .6rem; }
.curve svg { grid-area: 1 / 2 / 3 / 4; width: 100%; height: 12rem; overflow: visible; display: block;
  border: solid var(--line); border-width: 0 0 1px 1px; }
.curve path { fill: none; stroke: var(--keep); vector-effect: non-scaling-stroke; stroke-width: 2; }
.curve .dots { stroke-width: 6; stroke-linecap: round; }
.y { grid-area: 1 / 1; } .y.low { grid-area: 2 / 1; } .x { grid-area: 3 / 2; } .x.last { grid-area: 3 / 3; }
@media (max-width: 40rem) {
  body { margin: 1rem auto; }
  .bars { grid-template-columns: 1fr auto; gap: .1rem .8rem; }
  .label { grid-column: 1; text-align: left; } .note { grid-column: 2; text-align: right; }
  .track { grid-column: 1 / -1; height: 1rem; margin-bottom: .7rem; }
  td, th { padding: .25rem .5rem; }
}
"""
_LONG: Final = 40
"""Number of characters from which a cell gets room of its own, beside which a narrow screen scrolls."""


def plural(count: int, one: str, many: str | None = None) -> str:
    """A count and its noun: `1 task`, `1,200 tasks`. `many` is for nouns that do not end in s."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def page(title: str, *parts: str, run: str | Path | None = None) -> str:
    """A whole document of parts that the functions here and in `charts` made. `run` is the folder that it is about."""
    body = "\n".join(part for part in parts if part)
    made = "\n".join([*(f'<p class="origin">{escape(line)}</p>' for line in origin(run)), _in_viewer(run)])
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # Pages hold text of any origin; nothing in them may load or run.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n"
        f"{made}\n{body}\n</body>\n</html>\n"
    )


def _in_viewer(run: str | Path | None) -> str:
    """A link that works while `coa view` shows the folder. It has only the name: equal runs have equal pages."""
    if run is None:
        return ""
    name = Path(run).resolve().name
    address = f"http://127.0.0.1:{VIEWER_PORT}/#/folder/{quote(name, safe='')}"
    how = f"(start it with <code>coa view {escape(name)}</code>)"
    return f'<p class="origin"><a href="{escape(address)}">Open this run in the viewer</a> {how}</p>'


def section(heading: str, *parts: str) -> str:
    """Parts under a heading; nothing at all where every part is empty."""
    inside = "\n".join(part for part in parts if part)
    return f"<h2>{escape(heading)}</h2>\n{inside}" if inside else ""


def paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>" if text else ""


def notice(text: str) -> str:
    """A sentence that stands out, without which the figures could be misread."""
    return f'<p class="notice">{escape(text)}</p>'


def said(value: object) -> str:
    """A value of a setting in words: a list by its items, and `none` where there is nothing."""
    if value is None or value == "" or (isinstance(value, Collection) and not value):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {said(item)}" for name, item in value.items())
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ", ".join(map(said, value))
    return str(value)


@dataclass(frozen=True, slots=True)
class Link:
    """A cell of a table that leads to a place in the page, or to a file beside it."""

    text: str
    target: str


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table, if it has rows; numbers are aligned to the right, and None is an empty cell."""
    rows = list(rows)
    if not rows:
        return ""
    cells = "".join(f"<th>{escape(column)}</th>" for column in columns)
    head = f"<tr>{cells}</tr>\n" if any(columns) else ""
    body = "\n".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    return f'<div class="scroll"><table>\n{head}{body}\n</table></div>'


def details(summary: str, lines: Iterable[str] = (), *, parts: Iterable[str] = (), anchor: str = "") -> str:
    """A fold that shows the summary, and when opened the lines and then `parts`, which are markup.

    The anchor is inside the fold, because browsers open a fold when a link leads to something in it.
    """
    inside = "\n".join([*(f"<p>{escape(line)}</p>" for line in lines), *parts])
    place = f' id="{escape(anchor)}"' if anchor else ""
    return f"<details><summary>{escape(summary)}</summary><div{place}>{inside}</div></details>"


def text_block(heading: str, text: str) -> str:
    """A text as it is, line breaks included, under its name."""
    return f"<b>{escape(heading)}</b><pre>{escape(text)}</pre>"


def _cell(value: object) -> str:
    if value is None:
        return "<td></td>"
    if isinstance(value, Link):
        return f'<td><a href="{escape(value.target)}">{escape(value.text)}</a></td>'
    if isinstance(value, int | float) and not isinstance(value, bool):
        shown = f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
        return f'<td class="number">{shown}</td>'
    text = str(value)
    wide = ' class="long"' if len(text) > _LONG else ""
    return f"<td{wide}>{escape(text)}</td>"
