"""What a filter is: a pure function that says why a trajectory is dropped, or None."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from coa.distill.config import DistillConfig
from coa.trajectory import OBSERVATION, Author, Kind, Profile, Step, Trajectory
from coa.trajectory.shapes import Reading, read


class Reason(StrEnum):
    """Why a trajectory was dropped; the key of the funnel."""

    TOO_FEW_CALLS = "too_few_calls"
    TOO_MANY_CALLS = "too_many_calls"
    NO_ANSWER = "no_answer"
    FORGED_TAG = "forged_tag"
    VIOLATION = "violation"
    INEXPRESSIBLE = "inexpressible"
    """Something the team did that no step of the profile can tell."""
    REDUNDANT_CALLS = "redundant_calls"
    TOOL_ERRORS = "tool_errors"
    ENDS_IN_ERROR = "ends_in_error"
    REPETITION = "repetition"
    LEAKED_ANSWER = "leaked_answer"
    WRONG_ANSWER = "wrong_answer"
    UNSCORED = "unscored"
    NO_REFLECTION = "no_reflection"
    TOO_LONG = "too_long"
    SAME_TRAJECTORY = "same_trajectory"
    SAME_QUESTION = "same_question"
    NEAR_DUPLICATE = "near_duplicate"
    BENCHMARK_QUESTION = "benchmark_question"


@dataclass(frozen=True, slots=True)
class Dropped:
    reason: Reason
    detail: str
    """For a person: what was found where."""


Filter = Callable[[Trajectory, Profile, DistillConfig], Dropped | None]


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call with its answer."""

    agent: str
    arguments: str
    """Normalised, for comparison."""
    ok: bool
    step: int


def calls_of(trajectory: Trajectory, profile: Profile) -> list[Call]:
    """Tool calls in order. A call without an answer counts as failed."""
    calls: list[Call] = []
    for index, step in enumerate(trajectory.steps):
        agent = profile.agents.get(step.agent)
        if agent is None or agent.kind is not Kind.TOOL:
            continue
        after = trajectory.steps[index + 1] if index + 1 < len(trajectory.steps) else None
        answered = after is not None and after.agent == OBSERVATION and after.author is Author.ENVIRONMENT
        ok = answered and after is not None and succeeded(after)
        calls.append(Call(step.agent, _normalised(step, profile), ok, index))
    return calls


def succeeded(step: Step) -> bool:
    """What the record says; text without a record (foreign rows) is an error when it begins like one."""
    told = step.meta.get("ok")
    if isinstance(told, bool):
        return told
    return not step.text.lstrip().casefold().startswith(_ERRORS)


_ERRORS = ("error:", "error executing", "traceback (most recent call last)", "[error", "exception:")


def _normalised(step: Step, profile: Profile) -> str:
    reading = read(profile.shape(step.agent), step.text)
    values = reading.arguments.values() if isinstance(reading, Reading) else [step.text]
    return " ".join(" ".join(map(str, values)).casefold().split())


def digest(trajectory: Trajectory) -> str:
    """Names a trajectory by what it says: the same wherever and in whatever order it was read."""
    state = hashlib.sha256()
    for part in (trajectory.task.id, trajectory.task.question, trajectory.profile):
        state.update(part.encode() + b"\0")
    for step in trajectory.steps:
        state.update(f"{step.agent}\0{step.author}\0".encode() + step.text.encode() + b"\0")
    return state.hexdigest()[:32]


def lot(trajectory: Trajectory, seed: int) -> float:
    """A number in [0, 1) drawn for this trajectory, whatever else is in the set."""
    drawn = hashlib.sha256(f"{seed}\0{digest(trajectory)}".encode()).digest()
    return int.from_bytes(drawn[:7], "big") / (1 << 56)
