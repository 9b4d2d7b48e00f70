"""Who sends a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from starlette.requests import Request


class Caller(NamedTuple):
    key: str
    """Name of the key that the request carries; empty if the server asks for no key."""


def request_caller(request: Request) -> Caller:
    """Who sent it, as the guard found out. Only for paths that need a key."""
    caller: Caller = request.state.caller
    return caller
