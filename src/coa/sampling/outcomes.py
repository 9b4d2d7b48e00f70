"""The paper's query sampling: try every task without tools and with them, and keep those that RL can learn from.

Without tools comes first, because it costs one call: what is solved that way is not run with tools any more.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final, Protocol

from pydantic import JsonValue

from coa.errors import ProfileError
from coa.progress import Progress
from coa.runtime import BatchProgress, Setting, run_many
from coa.runtime.many import reported
from coa.sampling.attempts import Attempts
from coa.sampling.difficulty import Fate, Rate, Rules, fate, fate_with, fate_without
from coa.scoring import normalise
from coa.trajectory import Kind, Profile, Task, Trajectory, load_profile
from coa.trajectory.types import FrozenDict

META_KEY: Final = "sampling"
"""Key of a kept task's meta that holds its rates."""
_NONE: Final = Rate()
_PROMPT: Final = """
Answer the user's question from what you know. There is nothing here to look things up with or to run programs with. \
If you are not sure, give the answer that you hold for the most likely.

Write this and nothing else:
{agents}

{rules}

Keep the answer as short as the question allows. Where several answers are asked for, join them with |.
"""
"""The prompt of the attempts without tools."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """A task, whether it is kept, and how often it was solved."""

    task: Task
    fate: Fate
    without: Rate = _NONE
    with_tools: Rate = _NONE

    @property
    def reason(self) -> str:
        match self.fate:
            case Fate.IN_SFT_DATA:
                return "its question is in the data that SFT was trained on"
            case Fate.TOOLS_NOT_NEEDED:
                return f"solved without tools {self.without}"
            case Fate.UNSCORED if not self.with_tools.attempts:
                return f"too few attempts without tools could be scored: solved {self.without}"
            case Fate.UNSCORED:
                return f"too few attempts with tools could be scored: solved {self.with_tools}"
            case _:
                return f"solved with tools {self.with_tools}"

    def measured(self, **models: str) -> Task:
        """The task with its rates in meta."""
        found: dict[str, JsonValue] = {"with_tools": self.with_tools.to_json(), **models}
        if self.without.attempts:
            found["without_tools"] = self.without.to_json()
        return self.task.model_copy(update={"meta": FrozenDict({**self.task.meta, META_KEY: found})})


class Runs(Protocol):
    """Attempts at tasks, as `run_many` makes them."""

    def __call__(
        self, tasks: Sequence[Task], numbers: Sequence[int], attempts: Attempts, progress: BatchProgress
    ) -> AsyncGenerator[Trajectory, None]: ...


def agent_runs(setting: Setting) -> Runs:
    """Attempts with tools, as `coa run` makes them."""

    return lambda tasks, numbers, attempts, progress: run_many(
        tasks, setting, samples=numbers, out=attempts.file, progress=progress, score=attempts.score
    )


def closed_book_runs(setting: Setting) -> Runs:
    """Attempts without tools: answers from what the model knows, in the form that each task's profile asks for."""

    async def runs(
        tasks: Sequence[Task], numbers: Sequence[int], attempts: Attempts, progress: BatchProgress
    ) -> AsyncGenerator[Trajectory, None]:
        for name in dict.fromkeys(task.profile for task in tasks):
            group = [task.model_copy(update={"profile": None}) for task in tasks if task.profile == name]
            bare = without_tools(_profile(name, setting.profile))
            asked = agent_runs(replace(setting, tools={}, profile=bare, prompt=lambda task: None))
            async with aclosing(asked(group, numbers, attempts, progress)) as made:
                async for trajectory in made:
                    yield trajectory

    return runs


async def sample_tasks(
    tasks: Sequence[Task], rules: Rules, without: tuple[Runs, Attempts], with_tools: tuple[Runs, Attempts], *,
    progress: Progress, trained_on: Iterable[str] = (), early_stop: bool = False,
) -> list[Sampled]:  # fmt: skip
    """The fate of each task, in their order. `trained_on` are questions that SFT has seen.

    With `early_stop`, attempts at a task are made one after another, and end as soon as its fate is certain.
    """
    known = {normalise(question) for question in trained_on}
    fresh = [task for task in tasks if normalise(task.question_in_context) not in known] if known else list(tasks)
    before, after = without[1], with_tools[1]
    total, final = rules.no_tools_samples, rules.samples

    def rate_without(task: Task) -> Rate:
        return before.rate(task, total, rules.solved_at)

    def rate_with(task: Task) -> Rate:
        return after.rate(task, final, rules.solved_at)

    await before.load({task.id: task for task in fresh} if total else {})
    await _try(
        fresh, total, without, lambda t: fate_without(rate_without(t), rules), "without tools", progress, early_stop
    )
    needy = [task for task in fresh if fate_without(rate_without(task), rules) is Fate.KEPT]
    await after.load({task.id: task for task in needy})
    await _try(needy, final, with_tools, lambda t: fate_with(rate_with(t), rules), "with tools", progress, early_stop)

    tried, acted = {task.id for task in fresh}, {task.id for task in needy}
    return [
        Sampled(task, Fate.IN_SFT_DATA)
        if task.id not in tried
        else _sampled(task, rate_without(task), rate_with(task) if task.id in acted else _NONE, rules)
        for task in tasks
    ]


async def _try(
    tasks: Sequence[Task], samples: int, side: tuple[Runs, Attempts], decided: Callable[[Task], Fate | None], name: str,
    progress: Progress, early_stop: bool,
) -> None:  # fmt: skip
    """Make all attempts at once, or with `early_stop` in rounds, so that a round knows the results of those before."""
    runs, attempts = side
    for numbers in [[number] for number in range(samples)] if early_stop else [list(range(samples))]:
        waiting = [task for task in tasks if decided(task) is None] if early_stop else tasks
        if not waiting or not numbers:
            continue
        batch = BatchProgress(total=len(waiting) * len(numbers))
        title = f"{name}, attempt {numbers[0] + 1} of {samples}" if early_stop else name
        async with reported(batch, progress, title), aclosing(runs(waiting, numbers, attempts, batch)) as made:
            async for trajectory in made:
                attempts.add(trajectory)


def _sampled(task: Task, without: Rate, with_tools: Rate, rules: Rules) -> Sampled:
    found = fate(without, with_tools, rules)
    # All attempts were made, so the task must be decided; a defect here must not look like a verdict.
    assert found is not None, f"the fate of task {task.id} is open"
    return Sampled(task, found, without, with_tools)


def _profile(name: str | None, chosen: Profile) -> Profile:
    """The profile of that name. One that cannot be read is reported by the runs with tools; here its agents are not
    needed, so `chosen` serves as well."""
    try:
        return load_profile(name) if name else chosen
    except ProfileError:
        return chosen


def without_tools(profile: Profile) -> Profile:
    """The profile with only its thought and its answer, for a model that may use nothing but what it knows.

    An answer then has the form that its scorer expects. The profile keeps its name, by which a reader of the runs finds
    what the tags mean.
    """
    agents = {tag: agent for tag, agent in profile.agents.items() if agent.kind in (Kind.THOUGHT, Kind.ANSWER)}
    changed = {
        "about": "Answers from what it knows.",
        "start": ("answer",),
        "agents": agents,
        "prompt": _PROMPT,
        "limits": profile.limits.model_copy(update={"tool_calls": 0}),
    }
    return Profile.model_validate({**profile.model_dump(), **changed})
