"""The team: its members, what each may call, and the instructions of each."""

from __future__ import annotations

import importlib.resources
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache
from typing import Any, ClassVar, Final

import yaml
from smolagents import Tool, ToolCallingAgent
from smolagents.models import Model

from coa.errors import WorldError
from coa.trajectory.types import Task
from coa.worlds.atlas.world import Atlas
from coa.worlds.folder import locate, read
from coa.worlds.team.brain import CODER, CRITIC, READER, SEARCHER, VERIFIER, Brain
from coa.worlds.team.expert import ExpertModel
from coa.worlds.team.tools import TeamCode, TeamCrawlPage, TeamWebSearch, workshop

MANAGER: Final = "manager"
_INSTRUCTIONS: Final = {
    MANAGER: (
        "Have pages found by search_agent, read by reading_agent, numbers computed by coding_agent. When "
        "something went wrong, ask critic. Before you answer, have verifier check: end its task with a line "
        "`answer: ...`; below a score of 3 try again. "
        "Answer with the bare name or number. Keep every thought to a few words."
    ),
    SEARCHER: "Search by kind and name. Report the result lines as they are: address and kind. Names may be shared.",
    READER: "Open the pages, follow addresses in their facts where needed, and report the wanted fact as it stands.",
    CODER: "Compute with one short program and report what it prints.",
    CRITIC: "Say in one short sentence what went wrong and what to do instead.",
    VERIFIER: "Check the answer against what was seen. Reply with a short reason and `score: N`, 1 to 4; 3 passes.",
}
_ABOUT: Final = {
    SEARCHER: "Finds the addresses of pages about cities, firms and people.",
    READER: "Opens pages by address, follows their links, and reports facts.",
    CODER: "Computes with Python.",
    CRITIC: "Looks at what went wrong and says what to change.",
    VERIFIER: "Checks an answer and scores it from 1 to 4.",
}
_STEPS: Final = 20


def build(
    model: Model | None, task: Task, *, world: str, seed: int = 0, errors: float = 0.25, missed: float = 0.1
) -> ToolCallingAgent:
    """A new team for a task. Without a model the expert plays all agents; it knows the tasks of its world only."""
    shop = workshop(world)
    cast = (lambda name: model) if model is not None else _expert(task, world, seed, errors, missed)
    tools: dict[str, Sequence[Tool]] = {
        SEARCHER: [TeamWebSearch(shop, task)],
        READER: [TeamCrawlPage(shop, task)],
        CODER: [TeamCode(shop, task)],
    }
    members = [_agent(name, cast(name), tools.get(name, ()), description=_ABOUT[name]) for name in _ABOUT]
    # One plan at the beginning.
    return _agent(MANAGER, cast(MANAGER), (), managed_agents=members, planning_interval=_STEPS + 1)


class TeamAgent(ToolCallingAgent):  # type: ignore[misc]
    """smolagents renders an agent's system prompt for every run of every team; ours is the same each time."""

    _rendered: ClassVar[dict[str, str]] = {}

    def initialize_system_prompt(self) -> str:
        if self.name not in self._rendered:
            self._rendered[self.name] = super().initialize_system_prompt()
        return self._rendered[self.name]


def _agent(name: str, model: Model, tools: Sequence[Tool], **more: Any) -> ToolCallingAgent:
    return TeamAgent(
        tools=list(tools), model=model, prompt_templates=deepcopy(_prompts()), name=name,
        instructions=_INSTRUCTIONS[name], max_steps=_STEPS, verbosity_level=-1, **more,
    )  # fmt: skip


def _expert(task: Task, world: str, seed: int, errors: float, missed: float) -> Callable[[str], Model]:
    atlas = _atlas(world)
    question = atlas.question(task.id)
    if question is None or question.task.question != task.question:
        raise WorldError(
            f"the expert does not know the task {task.id!r}",
            hint="it plays only the tasks of its world (tasks/*.jsonl of --world); for others give --model URL",
        )
    brain = Brain(question, atlas.pages, seed, errors, missed)
    return lambda name: ExpertModel(brain, name)


@cache
def _prompts() -> Any:
    """The prompts of smolagents, which it would read from its file for every agent of every team."""
    file = importlib.resources.files("smolagents.prompts") / "toolcalling_agent.yaml"
    return yaml.safe_load(file.read_text(encoding="utf-8"))


@cache
def _atlas(world: str) -> Atlas:
    return read(locate(world)).atlas()
