"""A profile as a TOML file for people, with comments."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

from pydantic import BaseModel

from coa.trajectory import Agent, Profile, Shape
from coa.trajectory.types import Frozen

_WIDTH = 120


def to_toml(profile: Profile, comments: Mapping[str, str] | None = None) -> str:
    """The file that `load_profile` reads as this profile. `comments` are keyed by table or by top-level name."""
    said = comments or {}
    return "\n".join(_lines(profile, said)).rstrip() + "\n"


def _lines(profile: Profile, said: Mapping[str, str]) -> Iterator[str]:
    yield from _comment(said, "")
    for name in ("name", "about", "start"):
        yield f"{name} = {_value(getattr(profile, name))}"
    if profile.answers is not Profile.model_fields["answers"].default:
        yield f"answers = {_value(profile.answers)}"
    if not profile.recognised:
        yield "recognised = false"
    yield f"prompt = {_text(profile.prompt)}"
    if profile.example:
        yield from _comment(said, "example")
        yield f"example = {_text(profile.example)}"
    for tag, agent in profile.agents.items():
        yield ""
        yield from _comment(said, f"agents.{tag}")
        yield from _agent(tag, agent)
    for table, written in (("limits", _changed(profile.limits)), ("distill", dict(profile.distill))):
        if written:
            yield ""
            yield from _comment(said, table)
            yield f"[{table}]"
            yield from (f"{name} = {_value(value)}" for name, value in written.items())


def _agent(tag: str, agent: Agent) -> Iterator[str]:
    yield f"[agents.{tag}]"
    for name in ("title", "kind", "color", "does"):
        yield f"{name} = {_value(getattr(agent, name))}"
    if agent.shape != Shape() and not agent.shape.fields:
        yield f"shape = {_value(_changed(agent.shape))}"
    if agent.next:
        yield f"next = {_value(agent.next)}"
    if agent.thought:
        yield "thought = true"
    if agent.max is not None:
        yield f"max = {agent.max}"
    if agent.shape.fields:
        yield f"[agents.{tag}.shape]"
        yield from (f"{name} = {_value(value)}" for name, value in _changed(agent.shape).items() if name != "fields")
        yield f"[agents.{tag}.shape.fields]"
        for name, field in agent.shape.fields.items():
            yield f"{_key(name)} = {_value({'type': field.type, **_changed(field)})}"
    if agent.verdict is not None:
        yield f"[agents.{tag}.verdict]"
        # `read` says which kind of verdict it is, so it is written although it is the default.
        verdict = {"read": agent.verdict.read, **_changed(agent.verdict)}
        yield from (f"{name} = {_value(value)}" for name, value in verdict.items())


def _changed(record: Frozen) -> dict[str, Any]:
    """The fields that differ from their default."""
    given = {name: getattr(record, name) for name in type(record).model_fields}
    return {name: value for name, value in given.items() if value != type(record).model_fields[name].default}


def _comment(said: Mapping[str, str], place: str) -> Iterator[str]:
    for line in textwrap.wrap(" ".join(said.get(place, "").split()), _WIDTH - 2):
        yield f"# {line}"


def _text(text: str) -> str:
    """A text of several lines as it is, where TOML can hold it so."""
    plain = "'''" not in text and not text.endswith("'") and all(char >= " " or char in "\n\t" for char in text)
    if "\n" not in text or not plain or "\x7f" in text:
        return _value(text)
    return f"'''\n{text}'''"  # TOML leaves out the first line break


def _key(name: str) -> str:
    bare = name.isascii() and name.replace("_", "a").replace("-", "a").isalnum()
    return name if bare else _value(name)


def _value(value: Any) -> str:
    match value:
        case Enum():
            return _value(value.value)
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            # JSON's escapes are TOML's, and DEL is the one character that only TOML forbids.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case BaseModel():
            return _value(_changed(value) if isinstance(value, Frozen) else value.model_dump())
        case Mapping():
            inside = ", ".join(f"{_key(str(name))} = {_value(item)}" for name, item in value.items())
            return f"{{ {inside} }}" if inside else "{}"
        case Sequence():
            return f"[{', '.join(map(_value, value))}]"
        case _:
            raise TypeError(f"{type(value).__name__} has no place in a profile")
