"""Pages as a browser shows them: a heading, an infobox of facts with links, and the way to the list of all pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Final

from coa.worlds.atlas.entities import INDEXED, PAPER, REPORT, Page

_STYLE: Final = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:40rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;border:1px solid #bbb;background:#f8f8f4}th{text-align:left}"
    "th,td{padding:.3rem .8rem}nav,footer{color:#777;font-size:.85rem}"
)


def html(page: Page, pages: Mapping[str, Page]) -> str:
    shown = {label: _link(fact, fact) if fact in pages else escape(fact) for label, fact in page.facts.items()}
    rows = "".join(f"<tr><th>{escape(label)}</th><td>{value}</td></tr>" for label, value in shown.items())
    about = {
        PAPER: "An old newspaper: its figures no longer hold.",
        REPORT: "A firm's report, found through the firm's page.",
    }.get(page.kind, f"A {page.kind} of the atlas.")
    return _frame(
        f"{page.name} ({page.kind})",
        f"<main><h1>{escape(page.name)}</h1><table>{rows}</table></main>"
        f"<footer>{escape(about)} The atlas is invented: any likeness is chance.</footer>",
    )


def contents(pages: Iterable[Page]) -> str:
    """The start page, for people; the model never needs it."""
    by_kind: dict[str, list[Page]] = {}
    for page in pages:
        by_kind.setdefault(page.kind, []).append(page)
    sections = "".join(
        f"<h2>{kind}</h2><p>{' '.join(_link(page.address, page.name) for page in by_kind.get(kind, ()))}</p>"
        for kind in (*INDEXED, REPORT)
    )
    return _frame("The atlas", f"<main><h1>The atlas</h1>{sections}</main>")


def _frame(title: str, body: str) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<style>{_STYLE}</style></head><body><nav><a href="/">The atlas</a></nav>{body}</body></html>\n'
    )


def _link(address: str, text: str) -> str:
    return f'<a href="/{escape(address)}">{escape(text)}</a>'
