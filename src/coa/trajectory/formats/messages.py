"""Chat messages for trainers that mask by role: the model's text is `assistant`, an observation is `tool`.

In coa a run is one assistant turn. Trainers that mask by message need it cut wherever the author changes, and they put
the turn marks of their template there. To train on exactly the ids of coa, use `coa.trajectory.sample`.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

import orjson

from coa.trajectory.codec import pieces
from coa.trajectory.profile import Profile
from coa.trajectory.types import Author, Message, Task, Trajectory


def to_messages(trajectory: Trajectory, profile: Profile) -> dict[str, Any]:
    """OpenAI-style `{"messages": [...]}`."""
    prompt = trajectory.prompt or profile.messages(trajectory.task)
    messages: list[dict[str, Any]] = [{**message.model_dump(), **_untrained(message)} for message in prompt]
    for author, text in turns(trajectory, profile):
        messages.append({"role": "assistant" if author is Author.MODEL else "tool", "content": text})
    return {"messages": messages}


def to_sharegpt(trajectory: Trajectory, profile: Profile) -> dict[str, Any]:
    """ShareGPT-style `{"system": ..., "conversations": [...]}` with `human`, `gpt` and `observation`."""
    prompt = trajectory.prompt or profile.messages(trajectory.task)
    names = {"user": "human", "assistant": "gpt"}
    conversations: list[dict[str, Any]] = [
        {"from": names[message.role], "value": message.content, **_untrained(message)}
        for message in prompt if message.role != "system"
    ]  # fmt: skip
    for author, text in turns(trajectory, profile):
        conversations.append({"from": "gpt" if author is Author.MODEL else "observation", "value": text})
    system = "\n\n".join(message.content for message in prompt if message.role == "system")
    return {"system": system, "conversations": conversations}


def to_verl(trajectory: Trajectory, profile: Profile) -> dict[str, Any]:
    """One row for both trainers of verl: SFT reads `messages`; RL reads `prompt`, `reward_model` and `extra_info`."""
    task = trajectory.task
    prompt = trajectory.prompt or profile.messages(task)
    earlier = {"conversation": [turn.model_dump() for turn in task.conversation]} if task.conversation else {}
    return {
        "data_source": str(task.meta.get("data_source") or profile.name),
        "prompt": [message.model_dump() for message in prompt],
        "ability": str(task.meta.get("ability") or profile.name),
        "reward_model": {"style": "rule", "ground_truth": _ground_truth(task)},
        "extra_info": {"index": task.id, "question": task.question, "answer": list(task.answer), **earlier},
        "agent_name": "coa",
        **to_messages(trajectory, profile),
    }


def _untrained(message: Message) -> dict[str, int]:
    """The mark of an assistant message that is context: an answer earlier in the conversation, which is not trained."""
    return {"weight": 0} if message.role == "assistant" else {}


def turns(trajectory: Trajectory, profile: Profile) -> list[tuple[Author, str]]:
    """The transcript cut where the author changes."""
    grouped = groupby(pieces(trajectory.steps, profile), key=lambda piece: piece.author)
    return [(author, "".join(piece.text for piece in group)) for author, group in grouped]


def _ground_truth(task: Task) -> str:
    """Always a string, as the reward functions of verl expect. Tests and several answers are written as JSON."""
    if task.tests is not None and task.tests.functional is not None:
        return orjson.dumps({"functional": task.tests.functional}).decode()
    if task.tests is not None:
        cases = task.tests.cases
        outputs = [case.expected for case in cases]
        return orjson.dumps({"stdin": [case.stdin for case in cases], "expected_output": outputs}).decode()
    return task.answer[0] if len(task.answer) == 1 else orjson.dumps({"target": list(task.answer)}).decode()
