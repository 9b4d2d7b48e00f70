"""`num_eval_tasks`: the agent as it is at this moment, on held-out tasks, with real tools."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from coa.models.local import LocalModel
from coa.models.tokenizer import TextTokenizer
from coa.runtime.success import figures, keep, look, sentence
from coa.scoring import scorer_for
from coa.sft.data import asked
from coa.tools import Tool
from coa.tools.registry import open_tools
from coa.training.packed_model import give_back
from coa.training.weights import base_of
from coa.trajectory import Message, Profile, Task, Trajectory
from coa.trajectory.formats.tasks import free_id
from coa.worlds import world_tools

Prompts = Mapping[str, Sequence[Message]]


class AgentEval:
    """Success on some tasks. It works on a copy of the weights, so that training goes on as if it had not been."""

    def __init__(
        self,
        tasks: Sequence[Task],
        profile: Profile | str,
        tokenizer: TextTokenizer,
        *,
        given: Sequence[str],
        world: str | None = None,
        wanted: Sequence[str],
        own: Mapping[str, Tool],
        prompts: Prompts,
        scorer: str,
        out: Path,
        tell: Callable[[str], None],
    ) -> None:
        self._tasks, self._profile, self._tokenizer = tasks, profile, tokenizer
        self._given, self._world, self._wanted, self._own = given, world, wanted, own
        self._prompts, self._scorer = prompts, scorer
        self._out, self._tell = out, tell

    def __call__(self, model: torch.nn.Module, step: int) -> dict[str, float]:
        with torch.random.fork_rng():
            copied = copy.deepcopy(model)
            inner = base_of(copied)
            if inner is not copied:
                inner = copied.merge_and_unload()  # type: ignore[operator]
            give_back(inner)
            local = LocalModel(inner, self._tokenizer, name=f"step {step}")
            done = asyncio.run(self._run(local))
        keep(done, self._out / f"step-{step}")
        self._tell(f"step {step}: {sentence(done)}")
        return figures(done)

    async def _run(self, model: LocalModel) -> list[Trajectory]:
        scorer = scorer_for(self._scorer)
        wanted = [name for name in self._wanted if name not in self._own]
        try:
            async with world_tools(self._world, self._given) as given, open_tools(given, wanted=wanted) as box:
                for name, error in box.absent.items():
                    self._tell(f"no tool {name} for the evaluation: {error}")
                return await look(
                    self._tasks,
                    model,
                    {**box.tools, **self._own},
                    self._profile,
                    scorer,
                    prompt=lambda task: self._prompts.get(task.id),
                )
        finally:
            await scorer.close()
            await model.close()


def tasks_of(held_out: Sequence[Trajectory], count: int) -> tuple[list[Task], Prompts]:
    """The tasks of held-out trajectories that have an answer to compare with, and the prompts they were shown with."""
    tasks: dict[str, Task] = {}
    prompts: dict[str, Sequence[Message]] = {}
    taken: set[str] = set()
    for trajectory in held_out:
        task = trajectory.task
        if (question := asked(task)) in tasks:
            continue
        # Data of two sets may have one id for two questions, which are two tasks.
        task = task.model_copy(update={"id": free_id(task.id, taken)})
        if not task.answer and task.tests is None and trajectory.answer is not None:
            # Data without gold answers (AFM's SFT rows): what the teacher ended with is the best there is.
            task = task.model_copy(update={"answer": (trajectory.answer,)})
        tasks[question] = task.model_copy(update={"profile": trajectory.profile})
        if trajectory.prompt:
            prompts[task.id] = trajectory.prompt
    return list(tasks.values())[:count], prompts
