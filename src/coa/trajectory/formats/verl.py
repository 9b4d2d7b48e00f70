"""Rows for verl: `messages` for its SFT, `prompt`, `reward_model` and `extra_info` for its RL, in one Parquet file."""

from __future__ import annotations

from typing import Any

import orjson

from coa.trajectory.formats.messages import to_messages
from coa.trajectory.profile import Profile
from coa.trajectory.types import Task, Trajectory


def to_verl(trajectory: Trajectory, profile: Profile) -> dict[str, Any]:
    task = trajectory.task
    prompt = trajectory.prompt or profile.messages(task)
    return {
        "data_source": str(task.meta.get("data_source") or profile.name),
        "prompt": [message.model_dump() for message in prompt],
        "ability": str(task.meta.get("ability") or profile.name),
        "reward_model": {"style": "rule", "ground_truth": _ground_truth(task)},
        "extra_info": {"index": task.id, "question": task.question, "answer": list(task.answer)},
        "agent_name": "coa",
        **to_messages(trajectory, profile),
    }


def _ground_truth(task: Task) -> str:
    """Always a string, as verl's reward functions expect: tests and several answers as JSON."""
    if task.tests is not None and task.tests.functional is not None:
        return orjson.dumps({"functional": task.tests.functional}).decode()
    if task.tests is not None:
        cases = task.tests.cases
        outputs = [case.expected for case in cases]
        return orjson.dumps({"stdin": [case.stdin for case in cases], "expected_output": outputs}).decode()
    if len(task.answer) == 1:
        return task.answer[0]
    return orjson.dumps({"target": list(task.answer)}).decode()
