"""The prompt of a task that follows earlier turns of a conversation.

Chat templates want one system message at the front, and many of them then want `user` and `assistant` in turn. A
conversation from an application has neither property: it may have system messages anywhere, and two user messages in a
row where a run was stopped. So system messages join the system prompt, and consecutive messages of one role are joined.
"""

from __future__ import annotations

from itertools import groupby
from typing import Final

from coa.trajectory.types import Message, Task

_HEADING: Final = "Instructions for this conversation:"


def prompt_messages(system: str, task: Task) -> tuple[Message, ...]:
    """The messages that a model reads: the system prompt, the earlier turns of the task, and its question."""
    if not task.conversation:
        return Message(role="system", content=system), task.request
    instructions = [turn.content for turn in task.conversation if turn.role == "system"]
    if instructions:
        system = "\n\n".join([system, _HEADING, *instructions])
    turns = [*(turn for turn in task.conversation if turn.role != "system"), task.request]
    return Message(role="system", content=system), *joined(turns)


def joined(turns: list[Message]) -> list[Message]:
    """The messages with consecutive ones of the same role made into one."""
    return [
        Message(role=role, content="\n\n".join(turn.content for turn in group))
        for role, group in groupby(turns, key=lambda turn: turn.role)
    ]
