"""What several scanners ask of a run: its tool calls with what came back, and a short quotation of a text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from coa.trajectory import OBSERVATION, Author, Kind, Profile, Reading, Step, Trajectory
from coa.trajectory.shapes import read

_EXCERPT: Final = 80


class Call(NamedTuple):
    step: int
    tool: str
    arguments: str
    """Equal for two calls of a tool that ask the same."""
    text: str
    answer: int | None
    """Index of the step with the observation that answers it."""


def calls(trajectory: Trajectory, profile: Profile) -> Iterator[Call]:
    """The tool calls of the model, in order."""
    for index, step in enumerate(trajectory.steps):
        follows = index + 1 < len(trajectory.steps) and is_observation(trajectory.steps[index + 1])
        strange = follows and step.author is Author.MODEL and step.agent not in profile.tags
        if is_call(step, profile) or strange:  # a tool of a team may not be in the profile
            reading = read(profile.shape(step.agent), step.text)
            same = repr(sorted(reading.arguments.items())) if isinstance(reading, Reading) else step.text.strip()
            yield Call(index, step.agent, same, step.text, index + 1 if follows else None)


def is_call(step: Step, profile: Profile) -> bool:
    agent = profile.agents.get(step.agent)
    return agent is not None and agent.kind is Kind.TOOL and step.author is Author.MODEL


def is_observation(step: Step) -> bool:
    """Whether the environment wrote it; a model may forge one."""
    return step.agent == OBSERVATION and step.author is Author.ENVIRONMENT


def error_of(step: Step) -> str:
    """The name of the error that the runtime recorded with an observation; empty if there is none."""
    error = step.meta.get("error")
    return error if isinstance(error, str) else ""


def excerpt(text: str, most: int = _EXCERPT) -> str:
    """The beginning of a text on one line."""
    line = " ".join(text[: 4 * most].split())
    return line if len(line) <= most and len(text) <= 4 * most else f"{line[: most - 1].rstrip()}…"


def quotation(text: str, most: int = _EXCERPT) -> str:
    return f"“{excerpt(text, most)}”"
