"""Which sources an answer cites.

1. Every address in the answer is a citation of itself, at its own place, titled as the run's tools named it.
2. An answer without an address cites the pages that the run opened, for the whole answer.
3. If the run opened none, it cites the search results whose own lines contain the answer, for the whole answer.

Addresses are read from what the tools returned, so a citation of the second and third kind is never invented.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from coa.trajectory.types import OBSERVATION, Step

MOST: Final = 20
"""Number of citations of one answer."""
_ADDRESS: Final = re.compile(r"https?://[^\s<>\"'`\\{}|^\[\]]{1,2000}")
_ARTICLE: Final = re.compile(r"^(the|an?) ")
_NUMBER: Final = re.compile(r"\s*\d+\. ")
_MOST_SOURCES: Final = 500
_LONGEST_LINE: Final = 2_000
"""Pages may be written to waste time, so what is read of them is bounded."""


class Source(NamedTuple):
    url: str
    title: str = ""
    passage: str = ""
    """The lines of the tool's result that belong to it."""
    opened: bool = False
    """Whether the run read the page, and not only saw it in a list of results."""


class Citation(NamedTuple):
    url: str
    title: str
    """The address where no title is known."""
    start: int
    """Where in the answer the part that it supports begins, and where it ends."""
    end: int


def citations(answer: str, steps: Iterable[Step]) -> list[Citation]:
    """`steps` are those of the run."""
    sources = sources_of(steps)
    found = [(match, _trimmed(match.group())) for match in _ADDRESS.finditer(answer)]
    if found:
        return [
            Citation(url, _title(url, sources), match.start(), match.start() + len(url)) for match, url in found[:MOST]
        ]
    cited = [source for source in sources.values() if source.opened]
    said = _ARTICLE.sub("", " ".join(answer.split()).casefold()).rstrip(".")
    if not cited and said:
        cited = [source for source in sources.values() if said in source.passage.casefold()]
    return [Citation(source.url, source.title or source.url, 0, len(answer)) for source in cited[:MOST] if answer]


def sources_of(steps: Iterable[Step]) -> Mapping[str, Source]:
    """The addresses in what the tools returned, in the order of their first appearance."""
    found: dict[str, Source] = {}
    for step in steps:
        if step.agent != OBSERVATION or step.meta.get("ok") is False:
            continue
        for source in [*_listed(step.text), *_opened(step)]:
            known = found.get(source.url, source)
            if known is source and len(found) >= _MOST_SOURCES:
                continue
            found[source.url] = Source(
                source.url, known.title or source.title, known.passage or source.passage, known.opened or source.opened
            )
    return found


def _opened(step: Step) -> Iterable[Source]:
    """Pages that the tool opened, as it noted them: `pages` with `url`, and `error` where it failed."""
    pages = step.meta.get("pages")
    for page in pages if isinstance(pages, list) else []:
        url = page.get("url") if isinstance(page, dict) and not page.get("error") else None
        if isinstance(url, str) and _ADDRESS.fullmatch(url):
            yield Source(url, opened=True)


def _listed(text: str) -> Iterable[Source]:
    """Addresses in the text of a result. Search tools write `1. Title - address` and the snippet below it."""
    lines = [line[:_LONGEST_LINE] for line in text.splitlines()]
    for line, below in zip(lines, [*lines[1:], ""], strict=False):
        matches = list(_ADDRESS.finditer(line))
        if not matches:
            continue
        before, number = line[: matches[0].start()].rstrip(), _NUMBER.match(line)
        title = before[number.end() :].removesuffix("-").strip() if number and before.endswith(" -") else ""
        passage = " ".join(f"{line} {'' if _ADDRESS.search(below) else below}".split())
        for match in matches:
            yield Source(_trimmed(match.group()), title if match is matches[0] else "", passage)


def _trimmed(address: str) -> str:
    """Without the punctuation of the sentence around it."""
    while address and (address[-1] in ".,;:!?*_~" or (address[-1] == ")" and address.count(")") > address.count("("))):
        address = address[:-1]
    return address


def _title(url: str, sources: Mapping[str, Source]) -> str:
    known = sources.get(url) or sources.get(url.rstrip("/")) or sources.get(f"{url}/")
    return known.title if known is not None and known.title else url
