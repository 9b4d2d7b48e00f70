"""Which tasks come next. That follows from the seed and a few counters, so a resumed run samples the same tasks."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from coa.errors import StoreError, TrainingError
from coa.rl.config import RlConfig
from coa.trajectory import Task
from coa.trajectory.formats.tasks import read_tasks

if TYPE_CHECKING:
    from coa.rl.groups import Group  # which needs torch

_FLOOR: Final = 0.04
"""Added to p(1-p), so that families which are always or never solved are still sampled now and then."""
_PACE: Final = 0.2
"""Weight of a new group in a family's moving average of success."""


class Sampler:
    def __init__(self, tasks: Sequence[Task], config: RlConfig) -> None:
        self._config = config
        families: dict[str, list[Task]] = {}
        for task in tasks:
            families.setdefault(self._family(task), []).append(task)
        self._families = {name: families[name] for name in sorted(families)}
        self._count = min(config.tasks_per_draw, len(tasks))
        self._taken = dict.fromkeys(self._families, 0)
        self._success = dict.fromkeys(self._families, 0.5)
        self._draws = 0

    @property
    def success(self) -> dict[str, float]:
        """The success of each family so far, as a moving average."""
        return dict(self._success)

    def draw(self) -> list[Task]:
        """Some tasks, all different; every task of a family comes once before any of them comes again."""
        rng = random.Random(f"{self._config.seed} draw {self._draws}")
        self._draws += 1
        chosen: dict[str, Task] = {}
        left = {name: len(tasks) for name, tasks in self._families.items()}
        while len(chosen) < self._count:
            names = [name for name, count in left.items() if count]
            task = self._next(self._one_of(names, rng))
            if task.id not in chosen:
                chosen[task.id] = task
                left[self._family(task)] -= 1
        return list(chosen.values())

    def _one_of(self, names: Sequence[str], rng: random.Random) -> str:
        if self._config.task_sampling == "family":
            least = min(self._taken[name] for name in names)
            return rng.choice([name for name in names if self._taken[name] == least])
        weights = [p * (1 - p) + _FLOOR for p in (self._success[name] for name in names)]
        return rng.choices(names, weights)[0] if len(names) > 1 else names[0]

    def _next(self, name: str) -> Task:
        tasks = self._families[name]
        epoch, position = divmod(self._taken[name], len(tasks))
        self._taken[name] += 1
        order = list(range(len(tasks)))
        random.Random(f"{self._config.seed} order {name} {epoch}").shuffle(order)
        return tasks[order[position]]

    def _family(self, task: Task) -> str:
        return _family(task, self._config) if self._config.task_sampling != "shuffle" else ""

    def learn(self, groups: Iterable[Group]) -> None:
        for group in groups:
            name = self._family(group.task)
            found = [value for attempt in group.attempts if (value := attempt.success) is not None]
            if found and name in self._success:
                self._success[name] += _PACE * (sum(found) / len(found) - self._success[name])

    def state(self) -> dict[str, Any]:
        return {"taken": dict(self._taken), "success": dict(self._success), "draws": self._draws}

    def restore(self, state: dict[str, Any]) -> None:
        self._taken, self._success, self._draws = state["taken"], state["success"], state["draws"]


def load_tasks(config: RlConfig) -> tuple[list[Task], list[Task], str]:
    """The tasks to learn from, the held-out tasks, and a fingerprint of both."""
    if config.tasks is None:
        raise TrainingError("there are no tasks to learn from", hint="add --tasks FILE")
    tasks = _of_families(_read(config.tasks), config)
    held_out = _read(config.eval_tasks)[: config.num_eval_tasks] if config.eval_tasks else []
    both = {task.question_in_context for task in held_out} & {task.question_in_context for task in tasks}
    if both:
        raise TrainingError(
            f"{len(both)} of the tasks to evaluate on are also learnt from, e.g. {min(both)!r}",
            hint="give other tasks with --eval-tasks",
        )
    lost = [task.id for task in tasks if not task.answer and task.tests is None]
    custom = config.reward.function is not None or ":" in config.reward.scorer
    if len(lost) == len(tasks) and not custom:
        raise TrainingError(
            f"no task in {config.tasks} has an answer or tests, so no attempt could be scored",
            hint="add the field `answer` or `tests` to the rows, or --set reward.function=module:function",
        )
    digest = hashlib.sha256()
    for task in (*tasks, *held_out):
        digest.update(task.model_dump_json(exclude=None if task.conversation else {"conversation"}).encode())
    return tasks, held_out, digest.hexdigest()[:16]


def _family(task: Task, config: RlConfig) -> str:
    return str(task.meta.get(config.family_key, ""))


def _of_families(tasks: list[Task], config: RlConfig) -> list[Task]:
    there = sorted({_family(task, config) for task in tasks})
    if unknown := [name for name in config.families if name not in there]:
        raise TrainingError(
            f"{config.tasks} has no task of the family {unknown[0]!r}",
            hint=f"name some of {', '.join(filter(None, there)) or 'nothing: its tasks name no family'}",
        )
    return [task for task in tasks if not config.families or _family(task, config) in config.families]


def _read(source: str) -> list[Task]:
    try:
        tasks = list(read_tasks(source))
    except StoreError as error:
        hint = error.hint or "tasks are rows of JSONL, JSON or Parquet: a file, a folder, or a data set (owner/name)"
        raise TrainingError(error.message, hint=hint) from error
    if not tasks:
        raise TrainingError(f"{source} holds no task", hint="give a file with a row for each task")
    return tasks
