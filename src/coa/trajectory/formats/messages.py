"""Chat messages for trainers that mask by role: the model's text as `assistant`, observations as `tool`.

A run is one assistant turn in coa. Trainers that mask by message need it cut wherever the author changes, and put their
template's turn marks there; to train on exactly coa's ids, use `coa.trajectory.sample`.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

from coa.trajectory.codec import pieces
from coa.trajectory.profile import Profile
from coa.trajectory.types import Author, Trajectory


def to_messages(trajectory: Trajectory, profile: Profile) -> dict[str, Any]:
    """OpenAI-style `{"messages": [...]}`."""
    prompt = trajectory.prompt or profile.messages(trajectory.task)
    messages = [message.model_dump() for message in prompt]
    for author, text in turns(trajectory, profile):
        messages.append({"role": "assistant" if author is Author.MODEL else "tool", "content": text})
    return {"messages": messages}


def to_sharegpt(trajectory: Trajectory, profile: Profile) -> dict[str, Any]:
    """ShareGPT-style `{"system": ..., "conversations": [...]}` with `human`, `gpt` and `observation`."""
    prompt = trajectory.prompt or profile.messages(trajectory.task)
    names = {"user": "human", "assistant": "gpt"}
    conversations = [
        {"from": names[message.role], "value": message.content} for message in prompt if message.role != "system"
    ]
    for author, text in turns(trajectory, profile):
        conversations.append({"from": "gpt" if author is Author.MODEL else "observation", "value": text})
    system = "\n\n".join(message.content for message in prompt if message.role == "system")
    return {"system": system, "conversations": conversations}


def turns(trajectory: Trajectory, profile: Profile) -> list[tuple[Author, str]]:
    """The transcript cut where the author changes."""
    grouped = groupby(pieces(trajectory.steps, profile), key=lambda piece: piece.author)
    return [(author, "".join(piece.text for piece in group)) for author, group in grouped]
