"""Runs for scanners, and what a scanner says about one."""

from __future__ import annotations

from typing import Any

from pydantic import JsonValue

from coa.scan import Note, Scanner
from coa.trajectory import Step, Task, Trajectory, load_profile, observation, profile_of

Part = tuple[str, str] | Step
"""A step: by its agent and its text, or as it is."""


def seen(text: str, **meta: JsonValue) -> Step:
    """An observation with what the runtime records of it."""
    return observation(text, meta=meta)


def run_of(
    *parts: Part,
    question: str = "Who designed the bridge?",
    gold: str = "Ada",
    profile: str = "nano",
    **rest: Any,
) -> Trajectory:
    """`run_of(("think", "hm"), ("web_search", "bridge"), seen("..."), ("answer", "Ida"))`."""
    steps = tuple(part if isinstance(part, Step) else Step(agent=part[0], text=part[1]) for part in parts)
    known = load_profile(profile)
    task = rest.pop("task", None) or Task(id="t1", question=question, answer=gold)
    return Trajectory(task=task, profile=known.name, profile_hash=known.hash, steps=steps, **rest)


def notes(scanner: Scanner, trajectory: Trajectory) -> list[Note]:
    return list(scanner.scan(trajectory, profile_of(trajectory)))


def note(scanner: Scanner, trajectory: Trajectory) -> Note:
    """The only thing that the scanner says."""
    (found,) = notes(scanner, trajectory)
    return found
