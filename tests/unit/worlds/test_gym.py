"""Tasks of reasoning-gym: the same seed the same tasks; without the package, the way to get it."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from coa.errors import WorldError
from coa.worlds.gym import DATASETS, gym_tasks

THERE = find_spec("reasoning_gym") is not None


@pytest.mark.skipif(THERE, reason="reasoning-gym is installed")
def test_without_the_package_the_cure_is_told() -> None:
    with pytest.raises(WorldError, match="worlds"):
        next(gym_tasks(3, 7))


@pytest.mark.skipif(not THERE, reason="reasoning-gym is not installed")
def test_the_same_seed_gives_the_same_tasks_with_bare_answers() -> None:
    tasks = list(gym_tasks(12, 7))
    assert tasks == list(gym_tasks(12, 7)) and len({task.id for task in tasks}) == 12
    assert {str(task.meta["dataset"]) for task in tasks} == set(DATASETS)
    assert all(task.answer[0].lstrip("-").isdigit() for task in tasks)
    with pytest.raises(WorldError, match="nope"):
        next(gym_tasks(1, 7, ["nope"]))
