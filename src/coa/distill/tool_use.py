"""How a team used one of its tools, and the tool agent of a profile that can express it.

The agent's shape comes from the tool's definition where the trace has one, and from the arguments of the calls. A
definition can be wrong or older than the calls, so what was called always fits the shape.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from pydantic import JsonValue

from coa.distill.team_run import AgentRun
from coa.distill.tool_names import fits
from coa.report import plural
from coa.tools.schema import plain, shape_of
from coa.trajectory import Agent, ArgumentField, Form, Kind, Shape, load_profile
from coa.trajectory.shapes import FieldType

_CODE_KEYS: Final = ("code", "program", "script", "source", "source_code", "python", "python_code")
_SECTION: Final = re.compile(r"\n\s*\n|\n\s*(?:Args|Arguments|Parameters|Params|Returns?|Examples?)\s*:|\n\s*:param\b")
"""Where the first paragraph of a tool's description ends, such as a docstring's."""
_ABOUT: Final = 240
_JSON: Final = Shape(form=Form.JSON)
_LINE: Final = Shape(form=Form.LINE)
_CODE: Final = Shape(form=Form.CODE)


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    description: str = ""
    parameters: Mapping[str, JsonValue] | None = None
    """JSON schema of the arguments."""


def definitions_of(run: AgentRun) -> dict[str, ToolDefinition]:
    """Definitions of the tools of an agent, where its trace has them (`meta["tool_definitions"]`).

    A definition is a JSON schema of the arguments, or an object with `description` and `parameters`.
    """
    found = run.meta.get("tool_definitions")
    made: dict[str, ToolDefinition] = {}
    for name, row in found.items() if isinstance(found, Mapping) else ():
        if not isinstance(row, Mapping):
            continue
        description, schema = row.get("description"), row
        if not {"parameters", "description"}.isdisjoint(row) and not {"properties", "type"} <= set(row):
            inner = row.get("parameters")
            schema = inner if isinstance(inner, Mapping) else {}
        text = description if isinstance(description, str) else ""
        made[name] = ToolDefinition(text, schema if "properties" in schema or "type" in schema else None)
    return made


@cache
def shipped_tools() -> dict[str, Agent]:
    """The tool agents of the shipped profiles, by tag."""
    profiles = [load_profile(name) for name in ("all", "mhqa")]
    return {tag: profile.agents[tag] for profile in profiles for tag in profile.tools}


@dataclass
class _FieldUse:
    calls: int = 0
    """Calls in which it had a value."""
    types: set[FieldType] = field(default_factory=set)


@dataclass
class ToolUse:
    tag: str
    names: set[str] = field(default_factory=set)
    """The names under which the team called it."""
    calls: int = 0
    runs: int = 0
    definition: ToolDefinition = ToolDefinition()
    _fields: dict[str, _FieldUse] = field(default_factory=dict)
    _single: bool = True
    """Every call had one argument, which was a text."""
    _line: bool = True
    _code: bool = True
    _shipped: bool = True

    def add(self, name: str, arguments: Mapping[str, JsonValue]) -> None:
        self.calls += 1
        self.names.add(name)
        given = {key: value for key, value in arguments.items() if value is not None}
        for key, value in given.items():
            use = self._fields.setdefault(key, _FieldUse())
            use.calls += 1
            use.types.add(_type_of(value))
        only = next(iter(given.values()), None)
        self._single &= len(given) == 1 and isinstance(only, str) and bool(only.strip())
        self._line &= self._single and len(str(only).strip().splitlines()) == 1
        self._code &= self._single and fits(given, _CODE)
        shipped = shipped_tools().get(self.tag)
        texts = sum(isinstance(value, str | list) for value in given.values())
        self._shipped &= shipped is not None and fits(given, shipped.shape) and texts <= _texts_in(shipped.shape)

    def define(self, definition: ToolDefinition) -> None:
        """The fullest definition counts."""
        if definition.parameters is not None or self.definition.parameters is None:
            self.definition = ToolDefinition(
                definition.description or self.definition.description, definition.parameters
            )

    def propose(self) -> tuple[Agent, list[str]]:
        """The tool agent, and what it cannot express."""
        shipped = shipped_tools().get(self.tag)
        if shipped is not None and self._shipped:
            texts = {FieldType.STRING, FieldType.ARRAY}
            extra = sorted(key for key, use in self._fields.items() if not use.types & texts)
            lost = [f"{self.tag}: coa's own tool has no argument {key}; it is left out" for key in extra]
            return shipped.model_copy(update={"next": (), "thought": False}), lost
        shape, notes = self._shape()
        title = self.tag.replace("_", " ").capitalize()
        return Agent(title=title, kind=Kind.TOOL, does=self._does(shape), shape=shape, color="blue"), notes

    def _shape(self) -> tuple[Shape, list[str]]:
        declared = self._declared()
        names = list(dict.fromkeys([*declared, *self._fields]))
        if len(names) == 1 and self._single:
            if names[0].casefold() in _CODE_KEYS and self._code:
                return _CODE, []
            return (_LINE if self._line else Shape()), []
        fields: dict[str, ArgumentField] = {}
        for name in names:
            use, known = self._fields.get(name, _FieldUse()), declared.get(name)
            types = use.types | ({known.type} if known is not None else set())
            if FieldType.NUMBER in types:
                types -= {FieldType.INTEGER}
            if len(types) != 1:
                kinds = " and ".join(sorted(types))
                return _JSON, [f"{self.tag}: {name} is {kinds}; its shape accepts any JSON object"]
            required = (known is None or known.required) and use.calls == self.calls
            about = known.about if known is not None else ""
            fields[name] = ArgumentField(type=types.pop(), required=required, about=about)
        return Shape(form=Form.JSON, fields=fields), []

    def _declared(self) -> Mapping[str, ArgumentField]:
        """The fields of the definition; none where it has a field without a single type."""
        try:
            return shape_of(self.definition.parameters or {}).fields
        except ValueError:
            return {}

    def _does(self, shape: Shape) -> str:
        about = plain(_SECTION.split(self.definition.description.strip())[0], _ABOUT)
        name = min(self.names, default=self.tag)
        named = [key for key in dict.fromkeys([*self._declared(), *self._fields])]
        if shape.form is not Form.JSON:
            said = next((field.about for field in self._declared().values()), "")
            content = f"its argument {named[0]}" + (f" ({said})" if said else "")
        else:
            content = "" if shape.fields or not named else f"an object with {', '.join(named)}"
        if not about:
            return f"calls the tool {plain(name, 60)}{f' with {content}' if content else ''} and gets its result."
        return f"{about.rstrip('.')}. Write {content}." if content else about


def _texts_in(shape: Shape) -> int:
    """How many texts or lists of texts the shape carries. What is neither, such as a limit, may be left out."""
    return len(shape.fields) or 1 + shape.stdin


def _type_of(value: JsonValue) -> FieldType:
    match value:
        case bool():
            return FieldType.BOOLEAN
        case int():
            return FieldType.INTEGER
        case float():
            return FieldType.NUMBER
        case str():
            return FieldType.STRING
        case list() | tuple():
            return FieldType.ARRAY
        case _:
            return FieldType.OBJECT


def use_comment(use: ToolUse, runs: int) -> str:
    """How often it was called, for the reader of the profile."""
    others = sorted(use.names - {use.tag})
    named = f" as {', '.join(plain(name, 60) for name in others)}" if others else ""
    return f"called {plural(use.calls, 'time')} in {use.runs:,} of {plural(runs, 'run')}{named}"
