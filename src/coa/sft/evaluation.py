"""`num_eval_tasks`: the agent as it is at this moment, on held-out tasks, with real tools."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from coa.blocking import run_blocking
from coa.models.local import LocalModel
from coa.models.local.model import uses_bf16
from coa.models.tokenizer import TextTokenizer
from coa.progress import Progress
from coa.runtime import RunConfig, open_setting
from coa.runtime.success import figures, keep, look, sentence
from coa.scoring.opening import open_scorer
from coa.sft.config import SftConfig
from coa.sft.data import asked
from coa.tools import Tool
from coa.training.packed_model import give_back
from coa.training.weights import base_of
from coa.trajectory import Message, Profile, Task, Trajectory, profile_of
from coa.trajectory.formats.tasks import free_id
from coa.trajectory.profile import AnswerKind
from coa.trajectory.types import FrozenDict

Prompts = Mapping[str, Sequence[Message]]


@dataclass(frozen=True)
class AgentEval:
    """Success on some tasks. It works on a copy of the weights, so that training is not affected."""

    config: SftConfig
    tasks: Sequence[Task]
    profile: Profile
    """For tasks that `profiles` does not name."""
    profiles: Mapping[str, Profile]
    """By task id."""
    prompts: Prompts
    tokenizer: TextTokenizer
    tools: Mapping[str, Tool]
    out: Path
    progress: Progress

    def __call__(self, model: torch.nn.Module, step: int) -> dict[str, float]:
        with torch.random.fork_rng():
            copied = copy.deepcopy(model)
            inner = base_of(copied)
            if inner is not copied:
                inner = copied.merge_and_unload()  # type: ignore[operator]
            give_back(inner)
            local = LocalModel(inner, self.tokenizer, name=f"step {step}", bf16=uses_bf16(self.config.precision))
            done = run_blocking(self._run(local))
        keep(done, self.out / f"step-{step}")
        self.progress.say(f"step {step}: {sentence(done)}")
        return figures(done)

    async def _run(self, model: LocalModel) -> list[Trajectory]:
        run = RunConfig(world=self.config.world, tools=self.config.tools)
        try:
            done: list[Trajectory] = []
            for profile, tasks in self._by_profile():
                async with (
                    open_setting(run, tasks=tasks, model=model, tools=self.tools, profile=profile) as setting,
                    open_scorer(self.config.scorer) as scorer,
                ):
                    shown = replace(setting, prompt=lambda task: self.prompts.get(task.id))
                    done += await look(tasks, shown, scorer, self.progress)
            return sorted(done, key=lambda trajectory: trajectory.task.id)
        finally:
            await model.close()

    def _by_profile(self) -> list[tuple[Profile, list[Task]]]:
        """Tasks of one profile run together; nearly always that is all of them."""
        groups: dict[str, tuple[Profile, list[Task]]] = {}
        for task in self.tasks:
            profile = self.profiles.get(task.id, self.profile)
            groups.setdefault(profile.hash, (profile, []))[1].append(task)
        return list(groups.values())


def tasks_of(held_out: Sequence[Trajectory], count: int) -> tuple[list[Task], Prompts, dict[str, Profile]]:
    """The tasks of held-out trajectories that have an answer to compare with, and by the tasks' ids the prompts they
    were shown with and the profiles."""
    tasks: dict[str, Task] = {}
    prompts: dict[str, Sequence[Message]] = {}
    profiles: dict[str, Profile] = {}
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
        # It runs with the profile that the trajectory was made with; its name alone does not identify it.
        profile = profiles[task.id] = profile_of(trajectory)
        kind = {"answer_type": profile.answers.value} if profile.answers is not AnswerKind.TEXT else {}
        tasks[question] = task.model_copy(update={"profile": None, "meta": FrozenDict({**kind, **task.meta})})
        if trajectory.prompt:
            prompts[task.id] = trajectory.prompt
    return list(tasks.values())[:count], prompts, profiles
