"""What a worker reports to its parent. The parent needs no smolagents to understand it."""

from __future__ import annotations

from dataclasses import dataclass

from coa.distill.team_run import RECORDED, AgentRun, Source, TeamRun
from coa.errors import CoaError
from coa.trajectory.types import Failure, Stop, Task, Usage


@dataclass(frozen=True, slots=True)
class Ready:
    """The team's factory was loaded."""


@dataclass(frozen=True, slots=True)
class Broken:
    """No task can be run: the factory or the model cannot be had."""

    error: CoaError


@dataclass(frozen=True, slots=True)
class Done:
    """A task came to its end, whatever that was; its file is written."""

    task_id: str
    stop: Stop
    usage: Usage
    problem: str | None = None
    refused: bool = False
    cut: bool = False
    """The time was up and the team is still running: the process has to go."""


def nothing(task: Task, stop: Stop, failure: Failure | None = None) -> TeamRun:
    """A run of which nothing is known but how it ended."""
    root = AgentRun(id="manager-1", agent="manager", request=task.question)
    return TeamRun(task=task, root=root, source=Source(format=RECORDED), stop=stop, failure=failure)
