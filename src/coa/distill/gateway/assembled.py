"""What the assemblers of all protocols return, and how they collect texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Assembled:
    body: dict[str, Any]
    complete: bool
    """Whether the stream came to its end in the way that its protocol has for it."""
    error: str | None = None
    """What the server said went wrong in the middle of the stream."""


class Pieces(list[str]):
    """A text that arrives in pieces; `joined` makes it whole. Adding to a `str` would copy it for every piece."""


def joined(value: Any) -> Any:
    """A tree of values with all texts whole."""
    if isinstance(value, Pieces):
        return "".join(value)
    if isinstance(value, dict):
        return {name: joined(inner) for name, inner in value.items()}
    return [joined(inner) for inner in value] if isinstance(value, list) else value


def error_text(error: Any) -> str:
    """What an error object, in any of the shapes that servers use, says."""
    if isinstance(error, dict):
        error = error.get("message") or error.get("type") or error
    return str(error)[:500]
