"""The shape of a text that a model or tool wrote: lists, code between fences, the results of a search.

The page draws the parts one after another. Nothing is lost: what has no known shape stays text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal, TypedDict

from coa.web.highlighting import highlight

LONGEST: Final = 50_000
"""Number of characters above which a text is not read for its shape."""
_FENCE: Final = re.compile(r"^[ ]{0,3}```[ ]*([\w+#.-]{0,20})[^\n`]{0,40}\n(.*?)(?:\n[ ]{0,3}```[ ]*$|\Z)", re.M | re.S)
_NUMBERED: Final = re.compile(r"[ ]{0,3}(\d{1,3})[.)][ \t]+(?=\S)")
_BULLET: Final = re.compile(r"[ ]{0,3}[-*•][ \t]+(?=\S)")
_INLINE: Final = re.compile(r"(?:(?<=\s)|\A)(\d{1,2})[.)][ \t]+(?=\S)")
_RESULT: Final = re.compile(r"(\d{1,3})\. (\S.*)")
_ADDRESS: Final = re.compile(r"https?://[^\s<>\"'`]{1,2000}")
_DATED: Final = re.compile(r" \(([^()]{1,40})\)$")
_MOST_RESULTS: Final = 100


class TextPart(TypedDict):
    kind: Literal["text"]
    text: str


class ListPart(TypedDict):
    kind: Literal["list"]
    ordered: bool
    start: int
    items: list[str]


class CodePart(TypedDict):
    kind: Literal["code"]
    text: str
    language: str
    tokens: list[tuple[str, str]] | None


Part = TextPart | ListPart | CodePart


class SearchResult(TypedDict):
    title: str
    url: str
    """Empty if the result has none that leads to the web."""
    text: str
    """The snippet or passage."""
    date: str


class SearchResults(TypedDict):
    """The results of one query."""

    heading: str
    results: list[SearchResult]


def parts_of(text: str) -> list[Part] | None:
    """The parts of a text; None if it is plain text."""
    if len(text) > LONGEST:
        return None
    parts: list[Part] = []
    end = 0
    for fence in _FENCE.finditer(text):
        parts += _lists(text[end : fence.start()])
        language, code = fence.group(1), fence.group(2)
        parts.append(CodePart(kind="code", text=code, language=language, tokens=highlight(code, language or "text")))
        end = fence.end()
    parts += _lists(text[end:])
    return parts if any(part["kind"] != "text" for part in parts) else None


def _lists(text: str) -> Iterator[Part]:
    """A list is at least two lines that begin with a bullet, or with numbers that count up."""
    lines = text.split("\n")
    plain: list[str] = []
    at = 0
    while at < len(lines):
        found = _list_at(lines, at)
        if found is None:
            plain.append(lines[at])
            at += 1
            continue
        if part := _text(plain):
            yield part
        plain = []
        made, at = found
        yield made
    if part := _text(plain):
        yield part


def _text(lines: list[str]) -> TextPart | None:
    text = "\n".join(lines).strip("\n")
    return TextPart(kind="text", text=text) if text.strip() else None


def _list_at(lines: list[str], at: int) -> tuple[ListPart, int] | None:
    """The list that begins at this line, and the line behind it."""
    first = lines[at]
    number, bullet = _NUMBERED.match(first), _BULLET.match(first)
    if number is None and bullet is None:
        return None
    start = int(number.group(1)) if number else 1
    if number and len(items := _inline(first, start)) > 1:
        return ListPart(kind="list", ordered=True, start=start, items=items), at + 1
    marker = _NUMBERED if number else _BULLET
    items, behind = [], at
    for place in range(at, len(lines)):
        line = lines[place]
        found = marker.match(line)
        if found and (not number or int(found.group(1)) == start + len(items)):
            items.append(line[found.end() :])
        elif items and line.strip() and line[:1] in " \t":
            items[-1] += f"\n{line.strip()}"
        elif line.strip() or not _goes_on(lines, place + 1, marker):
            break
        behind = place + 1
    if len(items) < 2:
        return None
    return ListPart(kind="list", ordered=number is not None, start=start, items=items), behind


def _goes_on(lines: list[str], at: int, marker: re.Pattern[str]) -> bool:
    """Whether the next line is another item: blank lines between items belong to the list."""
    return at < len(lines) and marker.match(lines[at]) is not None


def _inline(line: str, start: int) -> list[str]:
    """`1. Search. 2. Read.` as its items."""
    cuts: list[tuple[int, int]] = []
    for found in _INLINE.finditer(line):
        if int(found.group(1)) == start + len(cuts):
            cuts.append((found.start(), found.end()))
    ends = [*(begin for begin, _ in cuts[1:]), len(line)]
    return [line[begin:end].strip() for (_, begin), end in zip(cuts, ends, strict=True)]


def search_results(text: str) -> list[SearchResults] | None:
    """The results that the search tools wrote (`coa.tools.results.show`); None if the text is anything else."""
    if len(text) > 4 * LONGEST:
        return None
    groups: list[SearchResults] = []
    for line in text.split("\n"):
        found = _RESULT.fullmatch(line)
        if found is not None and groups and int(found.group(1)) == len(groups[-1]["results"]) + 1:
            groups[-1]["results"].append(_result(found.group(2)))
        elif line.startswith("   ") and groups and groups[-1]["results"]:
            last = groups[-1]["results"][-1]
            last["text"] = f"{last['text']}\n{line.strip()}" if last["text"] else line.strip()
        elif line.strip():
            groups.append(SearchResults(heading=line, results=[]))
    count = sum(len(group["results"]) for group in groups)
    linked = any(result["url"] for group in groups for result in group["results"])
    titled = any(group["results"] and group["heading"].endswith(":") for group in groups)
    return groups if 0 < count <= _MOST_RESULTS and (linked or titled) else None


def _result(line: str) -> SearchResult:
    date = ""
    if dated := _DATED.search(line):
        date, line = dated.group(1), line[: dated.start()]
    before, dash, address = line.rpartition(" - ")
    if dash and _ADDRESS.fullmatch(address):
        return SearchResult(title=before.strip(), url=address, text="", date=date)
    url = line if _ADDRESS.fullmatch(line) else ""
    return SearchResult(title=line, url=url, text="", date=date)
