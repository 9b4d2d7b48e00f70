"""A streamed reply as the object that the same server would have sent without streaming.

Each protocol has its own way to cut a reply into events, and a file that knows it. All of them take a stream that was
cut off too, and say whether it was complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from coa.distill.gateway import assemble_chat, assemble_messages, assemble_responses
from coa.distill.gateway.assembled import Assembled
from coa.distill.gateway.sse import DONE, events


def assemble(protocol: str, raw: bytes) -> Assembled:
    """The reply in the bytes of a stream of server-sent events."""
    return _BY_PROTOCOL.get(protocol, _listed)(events(raw))


def _listed(found: Iterable[Any]) -> Assembled:
    """A protocol that is not known here: its events, one after another."""
    return Assembled({"events": [event for event in found if event is not DONE]}, complete=True)


_BY_PROTOCOL: Final[dict[str, Callable[[Iterable[Any]], Assembled]]] = {
    "chat": assemble_chat.assemble_chat,
    "completions": assemble_chat.assemble_completion,
    "responses": assemble_responses.assemble,
    "messages": assemble_messages.assemble,
}
