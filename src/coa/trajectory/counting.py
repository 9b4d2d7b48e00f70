"""What a trajectory costs as it stands, counted with a tokenizer instead of taken from a server.

Written are the model's steps. Read is the context at the start of each stretch that the model writes, as a server that
bills every request counts prompts. The length counts everything once, as a server that keeps the context works.
"""

from __future__ import annotations

from typing import NamedTuple

from coa.trajectory.ledger import Tokenizer, ledger_of
from coa.trajectory.profile import Profile
from coa.trajectory.types import Author, Trajectory, Usage


class Counted(NamedTuple):
    usage: Usage
    length: int
    written: dict[str, int]
    """By agent; the token that ends the turn is its last agent's."""


def count_tokens(trajectory: Trajectory, tokenizer: Tokenizer, profile: Profile) -> Counted:
    read = calls = context = 0
    written: dict[str, int] = {}
    writing = False
    for span in ledger_of(trajectory, tokenizer, profile).spans:
        if span.author is Author.MODEL:
            if not writing:
                calls, read = calls + 1, read + context
            agent = trajectory.steps[span.step].agent
            written[agent] = written.get(agent, 0) + len(span.ids)
        writing = span.author is Author.MODEL
        context += len(span.ids)
    tools = sum(step.agent in profile.tools for step in trajectory.steps)
    usage = Usage(prompt_tokens=read, completion_tokens=sum(written.values()), model_calls=calls, tool_calls=tools)
    return Counted(usage, context, written)
