"""Filters, sorting and search of the list, as people and pages write them, for SQLite."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from coa.errors import ConfigError
from coa.view.rows import spaced

_TERMS: Final = re.compile(r'"([^"]*)"|(\S+)')
_SCOPES: Final = ("question", "steps", "observations")
SORTS: Final = {
    "added": "id", "task": "task", "outcome": "outcome", "stop": "stop", "score": "score", "tokens": "tokens",
    "tool_calls": "tool_calls", "tool_errors": "tool_errors", "seconds": "seconds", "cost": "cost", "steps": "steps",
    "repairs": "repairs", "reward": "reward", "advantage": "advantage", "step": "rl_step", "sample": "sample",
}  # fmt: skip
"""What the list can be sorted by; with a minus sign, from the largest."""
_EQUAL: Final = {"outcome": "outcome", "stop": "stop", "benchmark": "benchmark", "family": "family", "task": "task"}
_LISTS: Final = ("outcome", "stop")
"""Filters that take several values, separated by commas."""
_WHOLE: Final = {"step": "rl_step = ?", "group": "grp = ?", "min_tokens": "tokens >= ?", "max_tokens": "tokens <= ?",
                 "sample": "sample = ?"}  # fmt: skip
_FLAGS: Final = {"tool_error": "tool_errors > 0", "repaired": "repairs > 0", "learnt": "learnt = 1"}
PARAMETERS: Final = frozenset({*_EQUAL, *_WHOLE, *_FLAGS, "folder", "agent", "q", "in", "finding", "sort", "offset",
                               "limit"})  # fmt: skip


def conditions(query: Mapping[str, str]) -> tuple[str, tuple[object, ...]]:
    """The `WHERE` of a query to the list, and its values. What cannot be understood raises `ConfigError`."""
    unknown = sorted(set(query) - PARAMETERS)
    if unknown:
        known = ", ".join(sorted(PARAMETERS))
        raise ConfigError(f"the list has no filter {unknown[0]!r}", hint=f"filters are {known}")
    parts, values = list[str](), list[object]()
    for name, column in _EQUAL.items():
        if name in query:
            wanted = query[name].split(",") if name in _LISTS else [query[name]]
            parts.append(f"{column} IN ({','.join('?' * len(wanted))})")
            values += wanted
    for name, condition in _WHOLE.items():
        if name in query:
            parts.append(condition)
            values.append(whole_number(query, name, 0))
    parts += [condition for name, condition in _FLAGS.items() if query.get(name) in ("1", "true")]
    if "folder" in query:
        parts.append("folder = (SELECT id FROM folders WHERE uid = ?)")
        values.append(query["folder"])
    if "agent" in query:
        parts.append("id IN (SELECT run FROM agents WHERE tag = (SELECT id FROM tags WHERE tag = ?))")
        values.append(query["agent"])
    if "finding" in query:
        parts.append("id IN (SELECT run FROM findings WHERE scanner = ?)")
        values.append(query["finding"])
    if words := match_expression(query.get("q", ""), query.get("in")):
        parts.append("id IN (SELECT rowid FROM words WHERE words MATCH ?)")
        values.append(words)
    return (f"WHERE {' AND '.join(parts)}" if parts else ""), tuple(values)


def match_expression(text: str, scope: str | None) -> str:
    """What a person typed, for SQLite: every word must occur, words in quotes together, the last one may go on."""
    terms: list[str] = []
    found = list(_TERMS.finditer(text))
    for at, term in enumerate(found):
        phrase, word = term.groups()
        words = spaced(phrase if phrase is not None else word).replace('"', " ")
        if not any(character.isalnum() for character in words):
            continue
        open_end = word is not None and at == len(found) - 1 and not text.endswith((" ", '"'))
        terms.append(f'"{words}"' + ("*" if open_end else ""))
    if not terms:
        return ""
    if scope and scope not in _SCOPES:
        raise ConfigError(f"cannot search in {scope!r}", hint=f"use one of {', '.join(_SCOPES)}")
    return f"{{{scope}}} : ({' AND '.join(terms)})" if scope else " AND ".join(terms)


def words_of(text: str) -> list[str]:
    """The words and phrases of a search, to mark them in a text."""
    return [phrase or word for phrase, word in _TERMS.findall(text) if (phrase or word).strip('"')]


def order(query: Mapping[str, str]) -> str:
    sort = query.get("sort") or "added"
    column = SORTS.get(sort.removeprefix("-"))
    if column is None:
        raise ConfigError(f"the list cannot be sorted by {sort!r}", hint=f"use one of {', '.join(SORTS)}")
    down = "DESC" if sort.startswith("-") else "ASC"
    return f"{column} {down}" if column == "id" else f"{column} {down} NULLS LAST, id"


def whole_number(query: Mapping[str, str], name: str, default: int) -> int:
    value = query.get(name, "")
    if not value:
        return default
    if not value.isdecimal() or len(value) > 15:
        raise ConfigError(f"`{name}` must be a whole number, not {value[:40]!r}")
    return int(value)
