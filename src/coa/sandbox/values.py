"""Values on their way through the wall: what a function returned, and the arguments that it gets.

A returned value is the program's word. It can find the descriptor and write what it likes there, so the message is read
here once, strictly: plain JSON of bounded depth, in which an object is one of four tags. `inside.cell` writes them:
{"dict": [[key, value], ...]}, {"set": [...]}, {"float": "nan"} and {"int": "0x..."} for an integer of many digits,
which Python refuses to read as a decimal. What comes out can be compared and handed on without further care.
"""

from __future__ import annotations

import json
from typing import Final

from pydantic import JsonValue

DEEPEST: Final = 100
"""Levels of nesting. Every reader behind this one, here or on another machine, can follow that many."""
_LONG_BITS: Final = 4096
"""From here on integers are written in hexadecimal, which any Python reads in linear time."""
_FLOATS: Final = frozenset(("nan", "inf", "-inf"))


def read_value(data: bytes) -> JsonValue:
    """The value in a message. Raises ValueError if `inside.cell` cannot have written it, or if it nests too deep."""
    try:
        value: JsonValue = json.loads(data, parse_constant=_refuse)  # not orjson, which makes floats of large integers
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    _check(value, DEEPEST, key=False)
    return value


def python_value(value: JsonValue, *, key: bool = False) -> object:
    """The value as Python has it. In a set or as a key, lists are tuples, and so are sets."""
    if isinstance(value, list):
        items = [python_value(item, key=key) for item in value]
        return tuple(items) if key else items
    if not isinstance(value, dict):
        return value
    ((tag, inside),) = value.items()
    if isinstance(inside, list):
        if tag == "set":
            found = {python_value(item, key=True) for item in inside}
            return tuple(found) if key else found
        pairs = [(pair[0], pair[1]) for pair in inside if isinstance(pair, list)]
        return {python_value(name, key=True): python_value(item) for name, item in pairs}
    return int(str(inside), 16) if tag == "int" else float(str(inside))


def literal(value: object) -> str:
    """A Python literal, with integers of any size. Raises ValueError for what is no plain data."""
    if isinstance(value, int) and not isinstance(value, bool) and is_long(value):
        return hex(value)
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(literal, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, set):
        return f"{{{', '.join(map(literal, value))}}}" if value else "set()"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{literal(name)}: {literal(item)}' for name, item in value.items())}}}"
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return repr(value)
    raise ValueError(f"a {type(value).__name__} is not plain data")


def is_long(number: int) -> bool:
    return number.bit_length() > _LONG_BITS


def _check(value: JsonValue, levels: int, *, key: bool) -> None:
    if value is None or isinstance(value, bool | int | float):
        return
    if isinstance(value, str):
        if not value.isascii():
            value.encode()  # a lone surrogate is no text, and no other program would take it
        return
    if levels == 0:
        raise ValueError("it is nested too deep")
    if isinstance(value, list):
        for item in value:
            _check(item, levels - 1, key=key)
        return
    if len(value) != 1:
        raise ValueError("it is not plain data")
    ((tag, inside),) = value.items()
    if tag == "set" and isinstance(inside, list):
        for item in inside:
            _check(item, levels - 1, key=True)
    elif tag == "dict" and isinstance(inside, list) and not key:
        for pair in inside:
            if not isinstance(pair, list) or len(pair) != 2:
                raise ValueError("it is not plain data")
            _check(pair[0], levels - 1, key=True)
            _check(pair[1], levels - 1, key=False)
    elif tag == "int" and isinstance(inside, str):
        int(inside, 16)
    elif not (tag == "float" and isinstance(inside, str) and inside in _FLOATS):
        raise ValueError("it is not plain data")


def _refuse(constant: str) -> float:
    raise ValueError(f"it holds a bare {constant}")
