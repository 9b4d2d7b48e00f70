"""Main text, title, date and links of HTML. trafilatura finds the main text; where it finds none, all text is used."""

from __future__ import annotations

from typing import Final
from urllib.parse import urljoin

from htmldate import find_date
from lxml.html import HtmlElement
from trafilatura import extract, html2txt, load_html

from coa.tools.documents.record import Document, Link

_SHORT: Final = 80
"""Characters: less than a sentence of prose."""
_LINKS: Final = 30
_AROUND: Final = frozenset({"nav", "header", "footer", "aside", "form"})


def read_html(text: str, url: str) -> Document:
    tree = load_html(text)
    if tree is None and text.strip():
        tree = load_html(f"<html><body>{text}</body></html>")  # a fragment, as people keep them in files
    if tree is None:
        return Document(text="", note="the page is empty or not HTML")
    main = extract(tree, url=url or None, include_comments=False, include_tables=True) or ""
    note = ""
    if len(main) < _SHORT:
        # Lists, indexes and short notices have no main text; for those, all of the text is used.
        everything = html2txt(tree)
        if len(everything) > 2 * len(main):
            main, note = everything, "the page has no clear main text; all of its text is given"
    # The extensive search would take any date in the text for the page's date, and take half of the reading time.
    date = find_date(tree, extensive_search=False, original_date=True, url=url or None) or ""
    return Document(text=main.strip(), title=_title(tree), date=date, links=_links(tree, url), note=note)


def _title(tree: HtmlElement) -> str:
    """The title for sharing, else the only heading, else the window title."""
    shared = [str(node.get("content") or "") for node in tree.iterfind(".//meta[@property='og:title']")]
    headings = [node.text_content() for node in tree.iter("h1")]
    windows = [node.text_content() for node in tree.iterfind(".//title")]
    found = [*shared[:1], *(headings if len(headings) == 1 else []), *windows[:1]]
    return next((title for words in found if (title := " ".join(words.split()))), "")[:300]


def _links(tree: HtmlElement, url: str) -> tuple[Link, ...]:
    """The first links of the page, without those in menus and footers."""
    found: dict[str, str] = {}
    base = next((str(node.get("href")) for node in tree.iterfind(".//base[@href]")), "")
    for node in tree.iter("a"):
        if any(parent.tag in _AROUND for parent in node.iterancestors()):
            continue
        label = " ".join(node.text_content().split())[:100]
        try:
            target = urljoin(urljoin(url, base), str(node.get("href") or "")).partition("#")[0]
        except ValueError:
            continue  # an address that cannot be one
        if label and target.startswith(("http://", "https://")) and target != url and len(target) < 500:
            found.setdefault(target, label)
            if len(found) == _LINKS:
                break
    return tuple(Link(text=label, url=target) for target, label in found.items())
