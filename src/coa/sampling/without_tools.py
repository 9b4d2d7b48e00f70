"""The question put to a model that has nothing but what it knows: one thought, one answer, no tools."""

from __future__ import annotations

from typing import Final

from coa.trajectory import Kind, Profile

_PROMPT: Final = """
Answer the user's question from what you know. There is nothing here to look things up with or to run programs with. \
If you are not sure, give the answer that you hold for the most likely.

Write this and nothing else:
{agents}

{rules}

Keep the answer as short as the question allows. Where several answers are asked for, join them with |.
"""


def without_tools(profile: Profile) -> Profile:
    """The profile with only its thought and its answer, so that an answer has the form that its scorer expects.

    It keeps the name, because that is where a reader of the runs finds what its tags mean.
    """
    agents = {tag: agent for tag, agent in profile.agents.items() if agent.kind in (Kind.THOUGHT, Kind.ANSWER)}
    changed = {
        "about": "Answers from what it knows.",
        "start": ("answer",),
        "agents": agents,
        "prompt": _PROMPT,
        "limits": profile.limits.model_copy(update={"tool_calls": 0}),
    }
    return Profile.model_validate({**profile.model_dump(), **changed})
