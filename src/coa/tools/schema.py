"""A tool that another system declares (MCP, function calling): its tag, description and argument shape in ours."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from itertools import chain, count
from typing import Any, Final

from coa.trajectory import Form, Shape
from coa.trajectory.shapes import ArgumentField, FieldType

_ABOUT: Final = 400
_FIELD_ABOUT: Final = 120


def shape_of(schema: Mapping[str, Any]) -> Shape:
    """The shape for a JSON schema. If a field has no single type, any object is accepted and the server checks it.

    Raises ValueError for a schema that does not describe an object.
    """
    properties = schema.get("properties", {})
    if schema.get("type", "object") != "object" or not isinstance(properties, Mapping):
        raise ValueError("its schema does not describe a JSON object")
    required = schema.get("required", [])
    if not isinstance(required, list):
        raise ValueError("its schema lists the required fields in a way that cannot be read")
    fields: dict[str, ArgumentField] = {}
    for name, found in properties.items():
        field = _resolved(found, schema)
        kind = _type(field, schema)
        if kind is None or not isinstance(name, str):
            return Shape(form=Form.JSON)
        fields[name] = ArgumentField(type=kind, required=name in required, about=_field_about(field))
    if schema.get("additionalProperties") not in (None, False):
        return Shape(form=Form.JSON)
    return Shape(form=Form.JSON, fields=fields)


def about_of(description: str | None, schema: Mapping[str, Any], shape: Shape) -> str:
    """One line for the prompt. A shape that accepts any object does not show the fields, so they are named here."""
    about = plain(description or "a tool of an MCP server", _ABOUT)
    properties = schema.get("properties")
    if not shape.fields and isinstance(properties, Mapping) and properties:
        required = schema.get("required") or []
        names = ", ".join(f"{name}{'' if name in required else ' (optional)'}" for name in map(str, properties))
        about = f"{about.rstrip('.')}. Fields: {plain(names, _ABOUT)}."
    return about


def legal_name(name: str, server: str, taken: Collection[str]) -> str:
    """A tag for the tool: its name if that is free, else with the server's name before it."""
    bare, prefix = tag_for(name, "mcp"), tag_for(server, "mcp")
    candidates = chain((bare, f"{prefix}_{bare}"), (f"{prefix}_{bare}_{number}" for number in count(2)))
    return next(candidate for candidate in candidates if candidate not in taken)


def plain(text: str, most: int) -> str:
    """A server's text for the system prompt: one line, without brackets that a chat template could interpret."""
    line = " ".join(text.split()).replace("<", "‹").replace(">", "›")
    return line if len(line) <= most else line[: most - 3] + "..."


def tag_for(name: str, prefix: str = "tool") -> str:
    """The name as a tag: small letters, digits and underscores. `getPage` and `get-page` both become `get_page`."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)
    tag = re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")[:60]
    return tag if tag[:1].isalpha() else f"{prefix}_{tag}".rstrip("_")


def _resolved(found: Any, schema: Mapping[str, Any], depth: int = 5) -> Mapping[str, Any]:
    """Follow references inside the schema. One that leads nowhere becomes an empty schema, which allows anything."""
    while depth and isinstance(found, Mapping) and isinstance(reference := found.get("$ref"), str):
        depth -= 1
        target: Any = schema
        for part in reference.removeprefix("#/").split("/"):
            target = target.get(part) if isinstance(target, Mapping) else None
        found = target
    return found if isinstance(found, Mapping) and "$ref" not in found else {}


def _type(field: Mapping[str, Any], schema: Mapping[str, Any]) -> FieldType | None:
    """The single type of a field, apart from `null`; None if there are several or none."""
    declared = field.get("type")
    kinds: set[Any] = set(declared) if isinstance(declared, list) else {declared} if declared else set()
    for choice in ("anyOf", "oneOf"):
        options = field.get(choice)
        for option in options if isinstance(options, list) else ():
            inner = _resolved(option, schema).get("type")
            kinds |= set(inner) if isinstance(inner, list) else {inner}
    if not kinds and isinstance(values := field.get("enum"), list) and all(isinstance(value, str) for value in values):
        kinds = {"string"}
    kinds.discard("null")
    kind = kinds.pop() if len(kinds) == 1 else None
    return FieldType(kind) if isinstance(kind, str) and kind in set(FieldType) else None


def _field_about(field: Mapping[str, Any]) -> str:
    about = plain(str(field.get("description") or ""), _FIELD_ABOUT)
    values = field.get("enum")
    if isinstance(values, list) and values:
        about = f"{about}{'; ' if about else ''}one of {plain(', '.join(map(str, values)), _FIELD_ABOUT)}"
    return about
