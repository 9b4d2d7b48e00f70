"""Server-sent events in the bytes of a finished (or cut) stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from coa.http import lenient_json

DONE: Final = object()
"""The event `[DONE]`, with which OpenAI's older protocols end."""


def events(raw: bytes) -> Iterator[Any]:
    """The JSON value of each event. Events without a value, and a last one that was cut, are passed over."""
    if b"\r" in raw:
        raw = raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    data: list[bytes] = []
    for line in raw.split(b"\n"):
        if line.startswith(b"data:"):
            data.append(line[5:])
        elif not line and data:
            yield from _value(data)
            data = []
    yield from _value(data)


def _value(data: list[bytes]) -> Iterator[Any]:
    content = b"\n".join(data).strip()
    if content == b"[DONE]":
        yield DONE
    elif content:
        try:
            yield lenient_json(content)
        except ValueError:
            return
