"""What the search tools share: how several queries are written, how a tool is set up, and how results are shown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

from coa.errors import ToolError

MAX_QUERIES: Final = 8
"""The most queries in one call."""


@dataclass(frozen=True, slots=True)
class Found:
    """One result."""

    title: str
    url: str
    text: str
    date: str = ""


def queries_of(arguments: Mapping[str, JsonValue]) -> list[str]:
    """Each query once. Profiles differ: one line of queries separated by bars, or a list."""
    items = arguments.get("items")
    parts = items if isinstance(items, list) else str(arguments.get("text", "")).split("|")
    return list(dict.fromkeys(query for part in parts if (query := " ".join(str(part).split()))))


def show(source: str, query: str, found: Sequence[Found]) -> str:
    """The source, then the numbered results."""
    if not found:
        return f'{source} found nothing for "{query}".'
    lines = [f'{source}, results for "{query}":']
    for number, one in enumerate(found, 1):
        title = _line(one.title) or _line(one.url) or "untitled"
        url = f" - {one.url}" if one.url and one.url != title else ""
        date = f" ({_line(one.date)})" if one.date else ""
        lines.append(f"{number}. {title}{url}{date}")
        if text := _line(one.text):
            lines.append(f"   {text}")
    return "\n".join(lines)


def show_briefly(found: Sequence[Found]) -> str:
    """One line per result, for small models: the address, and what title and text add to it."""
    lines = []
    for one in found:
        address = one.url or _line(one.title)
        title, text = _line(one.title), _line(one.text)
        said = [part for part in (title, text) if part and part.casefold() not in address.casefold()]
        lines.append(": ".join([address, *said]))
    return "\n".join(lines) or "nothing found"


def _line(text: str) -> str:
    return " ".join(text.split())


def parse_setting(tool: str, setting: str, known: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Split `target,name=value,...` into the target and the options, which must be among those in `known`."""
    target, *rest = re.split(r",(?=\w+=)", setting)
    options = dict(part.split("=", 1) for part in rest)
    if match := re.match(r"(\w+)=", target):  # no target, options only
        options[match.group(1)] = target[match.end() :]
        target = ""
    for name in options:
        if name not in known:
            listed = ", ".join(f"{key} ({about})" for key, about in known.items())
            raise ToolError(f"--tool {tool}: there is no option {name!r}", hint=f"the options are {listed}")
    return target, options


def whole_number(tool: str, options: Mapping[str, str], name: str, default: int) -> int:
    try:
        value = int(options.get(name, default))
    except ValueError:
        value = 0
    if value < 1:
        raise ToolError(f"--tool {tool}: {name}={options[name]} is not a number above 0")
    return value
