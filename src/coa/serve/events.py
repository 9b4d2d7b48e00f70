"""What happens in a served run, in the form that every protocol is written from.

A run is a row of *items*, numbered from 0: a thought, plan, reflection or verification; a tool call with its result;
the answer. The events of one item come in this order and are never mixed with those of another:

    ItemBegan, ItemText*, ItemDone                     of a thought, a plan, an answer, ...
    ItemBegan, ItemText*, ItemDone, ToolReturned       of a tool that the server calls itself
    ItemBegan, ItemText*, ItemDone                     of a tool of the client's; `RunEnded` follows

The chain reports a model's words twice: while it writes them, half read, and when the step is complete. `Narrator`
(narrator.py) joins the two: the text of an item's `ItemDone` is the recorded one, and every `ItemText` is a piece of it
that will not change, so a client that only adds up the pieces ends with the same text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from pydantic import JsonValue

from coa.trajectory import Step, Trajectory


class ItemKind(StrEnum):
    THOUGHT = "thought"
    """The thinking agent, and the roles: plan, reflection, verification."""
    TOOL = "tool"
    """A tool that the server calls."""
    CLIENT_TOOL = "client_tool"
    """A tool that the client offered with its request and calls itself."""
    ANSWER = "answer"


@dataclass(frozen=True, slots=True)
class ItemBegan:
    item: int
    agent: str
    """The tag of the agent in the profile."""
    kind: ItemKind


@dataclass(frozen=True, slots=True)
class ItemText:
    """More of what the model writes."""

    item: int
    text: str


@dataclass(frozen=True, slots=True)
class ItemDone:
    item: int
    step: Step
    """As recorded. Its text is that of all `ItemText` together."""
    arguments: Mapping[str, JsonValue] | None = None
    """Of a tool call that can be made; None for other items and for a call that cannot be read."""


@dataclass(frozen=True, slots=True)
class ToolReturned:
    """The result of a server's tool, or the note that the model got instead of one."""

    item: int
    step: Step
    """The observation; `step.meta` has `ok` and `seconds`."""


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The last event of every run. `trajectory.stop` says why; `waiting`: for a tool of the client's."""

    trajectory: Trajectory


RunEvent = ItemBegan | ItemText | ItemDone | ToolReturned | RunEnded
