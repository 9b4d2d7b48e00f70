"""Counts the tokens of a trajectory with a tokenizer, instead of taking the numbers of a server.

Completion tokens are those of the model's steps. Prompt tokens are those of the context at each point where the model
starts to write, as a server counts them that bills every request. The length counts every token once.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from coa.trajectory.ledger import Tokenizer, ledger_of
from coa.trajectory.profile import Profile
from coa.trajectory.types import Author, Trajectory, Usage


class Counted(NamedTuple):
    usage: Usage
    length: int
    written: dict[str, int]
    """Completion tokens by agent. The token that ends the turn counts for the last agent."""


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
    tools = answered_calls(trajectory, profile)
    usage = Usage(prompt_tokens=read, completion_tokens=sum(written.values()), model_calls=calls, tool_calls=tools)
    return Counted(usage, context, written)


def tool_calls(trajectory: Trajectory, profile: Profile) -> int:
    """Number of tool calls that were made: as the run counted them, or by its steps if it was never run."""
    return trajectory.usage.tool_calls if trajectory.usage.model_calls else answered_calls(trajectory, profile)


def answered_calls(trajectory: Trajectory, profile: Profile) -> int:
    """Number of calls that got an observation. A call without one was written, but never made."""
    tools = frozenset(profile.tools)
    return sum(call.agent in tools and after.author is Author.ENVIRONMENT for call, after in pairwise(trajectory.steps))
