"""HTML from plain values. Everything is escaped here, so callers pass text and get markup."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Final

_STYLE: Final = """
:root { color-scheme: light dark; --line: #8885; --soft: #8882; --keep: #3a7d5d; --drop: #c2703d; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; margin: .5rem 0; }
td, th { padding: .25rem .75rem; border-bottom: 1px solid var(--line); }
th { text-align: left; } td.number { text-align: right; font-variant-numeric: tabular-nums; }
details { margin: .3rem 0; } details > div { padding: .3rem 0 .3rem 1rem; border-left: 3px solid var(--soft); }
svg { max-width: 100%; height: auto; } svg text { font: 14px system-ui, sans-serif; fill: currentColor; }
.scroll { overflow-x: auto; }
"""


def plural(count: int, one: str, many: str | None = None) -> str:
    """A count and its noun: `1 task`, `1,200 tasks`. `many` is for nouns that do not end in s."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def page(title: str, *parts: str) -> str:
    """A whole document of parts that the functions here and in `charts` made."""
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # Pages hold text of any origin; nothing in them may load or run.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n"
        f"{body}\n</body>\n</html>\n"
    )


def paragraph(text: str, *, heading: str | None = None) -> str:
    head = f"<h2>{escape(heading)}</h2>\n" if heading else ""
    return head + (f"<p>{escape(text)}</p>" if text else "")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; numbers are aligned to the right, and None is an empty cell."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "\n".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    return f'<div class="scroll"><table>\n<tr>{head}</tr>\n{body}\n</table></div>'


def links(about: str, pages: Mapping[str, str]) -> str:
    """Links to other pages, by their titles; the addresses are relative to this page."""
    shown = " · ".join(f'<a href="{escape(target)}">{escape(name)}</a>' for name, target in pages.items())
    return f"<p>{escape(about)} {shown}</p>"


def details(summary: str, lines: Iterable[str] = (), *, parts: Iterable[str] = ()) -> str:
    """A fold that shows the summary, and when opened the lines and then `parts`, which are markup."""
    inside = "\n".join([*(f"<p>{escape(line)}</p>" for line in lines), *parts])
    return f"<details><summary>{escape(summary)}</summary><div>{inside}</div></details>"


def _cell(value: object) -> str:
    if value is None:
        return "<td></td>"
    if isinstance(value, int | float) and not isinstance(value, bool):
        shown = f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
        return f'<td class="number">{shown}</td>'
    return f"<td>{escape(str(value))}</td>"
