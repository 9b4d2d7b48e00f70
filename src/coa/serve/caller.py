"""Who sends a request."""

from __future__ import annotations

from typing import NamedTuple


class Caller(NamedTuple):
    key: str
    """Name of the key that the request carries; empty if the server asks for no key."""
