"""A fenced JSON object with given fields, as a state machine for `contents`.

The depth of nesting is bounded, so that there are finitely many states. Fields come in the order of the shape.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Final, NamedTuple

import orjson

from coa.trajectory.shapes import FieldType

_OPENING: Final = "\n```json\n"
_CLOSING: Final = "\n```\n"
_DEEPEST: Final = 3
_DIGITS: Final = 15
"""Longer integers are not exact in every JSON reader."""
_DECIMALS: Final = 6
_TOP: Final = "."


class At(NamedTuple):
    """The state: what is being read, how far, and the containers around it (`.` is the object itself)."""

    reading: str
    done: Hashable = ""
    around: str = _TOP
    field: int = 0
    """Number of fields of the object that are decided."""


class JsonObject:
    def __init__(self, fields: Mapping[str, tuple[FieldType, bool]]) -> None:
        self._types = [kind for kind, _ in fields.values()]
        self._required = [required for _, required in fields.values()]
        self._keys = [orjson.dumps(name).decode() for name in fields]
        self.start: Hashable = At("opening", 0)

    def ends(self, state: Hashable) -> bool:
        return state == At("closing", len(_CLOSING))

    def step(self, state: Hashable, char: str) -> Hashable | None:
        assert isinstance(state, At)
        match state.reading:
            case "opening":
                return self._literal(state, _OPENING + "{", char, At("first key"))
            case "closing":
                return self._literal(state, _CLOSING, char, At("closing", len(_CLOSING)))
            case "first key" | "key":
                return self._key(state, char)
            case "name":
                return self._name(state, char)
            case "string" | "key string":
                return self._string(state, char)
            case "escape" | "key escape":
                return state._replace(reading=state.reading.replace("escape", "string")) if char in '"\\/nt' else None
            case "colon":
                return state._replace(reading="value", done="any blank") if char == ":" else None
            case "value" | "first item":
                return self._value(state, char)
            case "number":
                return self._number(state, char)
            case "word":
                rest = str(state.done)
                if char != rest[0]:
                    return None
                return state._replace(done=rest[1:]) if rest[1:] else state._replace(reading="after", done="")
            case "after":
                return self._after(state, char)
        return None

    def _literal(self, state: At, text: str, char: str, following: At) -> At | None:
        at = state.done
        assert isinstance(at, int)
        if at >= len(text) or char != text[at]:
            return None
        return following if at + 1 == len(text) else state._replace(done=at + 1)

    # ---- keys

    def _possible(self, field: int) -> range:
        """The fields that may come next: optional fields may be left out, up to the next required one."""
        first = next((n for n in range(field, len(self._keys)) if self._required[n]), len(self._keys) - 1)
        return range(field, first + 1)

    def _key(self, state: At, char: str) -> At | None:
        if char == "}" and state.reading == "first key":
            return self._close(state)
        if char == " " and state.reading == "key" and not state.done:
            return state._replace(done="blank")
        if char != '"':
            return None
        if state.around == _TOP and self._keys:
            return state._replace(reading="name", done='"') if self._possible(state.field) else None
        return state._replace(reading="key string", done="")

    def _name(self, state: At, char: str) -> At | None:
        written = str(state.done) + char
        for field in self._possible(state.field):
            if self._keys[field] == written:
                return At("colon", "", _TOP, field + 1)
        if any(self._keys[field].startswith(written) for field in self._possible(state.field)):
            return state._replace(done=written)
        return None

    # ---- values

    def _type(self, state: At) -> FieldType | None:
        """Type of the value that comes next; None if any type is allowed."""
        return self._types[state.field - 1] if state.around == _TOP and self._types else None

    def _value(self, state: At, char: str) -> At | None:
        kind = self._type(state)
        if char == " " and state.done == "any blank":
            return state._replace(done="")
        if char == "]" and state.reading == "first item":
            return self._close(state)
        if char == '"' and kind in (None, FieldType.STRING):
            return state._replace(reading="string", done="")
        if char == "{" and kind in (None, FieldType.OBJECT) and len(state.around) <= _DEEPEST:
            return state._replace(reading="first key", done="", around=state.around + char)
        if char == "[" and kind in (None, FieldType.ARRAY) and len(state.around) <= _DEEPEST:
            return state._replace(reading="first item", done="", around=state.around + char)
        if char in "-0123456789" and kind in (None, FieldType.INTEGER, FieldType.NUMBER):
            return state._replace(reading="number", done=("-" if char == "-" else "0" if char == "0" else "i", 1))
        word = {"t": "rue", "f": "alse"}.get(char) if kind in (None, FieldType.BOOLEAN) else None
        if char == "n" and kind is None:
            word = "ull"
        return state._replace(reading="word", done=word) if word else None

    def _string(self, state: At, char: str) -> At | None:
        if char in "\n\t":
            return None
        if char == "\\":
            return state._replace(reading=state.reading.replace("string", "escape"))
        if char != '"':
            return state
        return state._replace(reading="after" if state.reading == "string" else "colon")

    def _number(self, state: At, char: str) -> At | None:
        assert isinstance(state.done, tuple)
        part, digits = state.done
        if char.isdigit() and char.isascii():
            if part == "-":
                return state._replace(done=("i", 1)) if char != "0" else None
            most = {"i": _DIGITS, ".": _DECIMALS}.get(part, 0)
            return state._replace(done=(part, digits + 1)) if digits < most else None
        if char == "." and part in "0i" and self._type(state) is not FieldType.INTEGER:
            return state._replace(done=(".", 0))
        return self._after(state, char) if part in "0i" or (part == "." and digits) else None

    def _after(self, state: At, char: str) -> At | None:
        inside = state.around[-1]
        if char == ",":
            if inside == "[":
                return state._replace(reading="value", done="any blank")
            if inside == _TOP and self._keys and state.field >= len(self._keys):
                return None
            return state._replace(reading="key", done="")
        return self._close(state) if char == ("]" if inside == "[" else "}") else None

    def _close(self, state: At) -> At | None:
        if state.around != _TOP:
            return state._replace(reading="after", done="", around=state.around[:-1])
        missing = any(self._required[state.field :])
        return None if missing else At("closing", 0)
