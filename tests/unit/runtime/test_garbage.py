"""Batches of runs make the garbage collector rarer, and leave it as they found it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from coa.models.scripted import ScriptedModel
from coa.runtime.garbage import rare_collections
from coa.trajectory import Task
from support.runs import run_many

DONE = "<think>d</think>\n<answer>Ada</answer>"


@pytest.fixture(autouse=True)
def usual() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield gc.get_threshold()
    gc.set_threshold(*before)


def test_the_last_of_several_batches_restores_the_thresholds(usual: tuple[int, int, int]) -> None:
    first, second = rare_collections(), rare_collections()
    first.__enter__()
    assert gc.get_threshold()[0] > usual[0]
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold()[0] > usual[0], "the second one is still under way"
    second.__exit__(None, None, None)
    assert gc.get_threshold() == usual


def test_a_collector_that_is_off_or_rarer_stays_so() -> None:
    for chosen in ((0, 10, 10), (100_000, 5, 5)):
        gc.set_threshold(*chosen)
        with rare_collections():
            assert gc.get_threshold() == chosen
        assert gc.get_threshold() == chosen


def test_thresholds_that_somebody_sets_meanwhile_stay() -> None:
    with rare_collections():
        gc.set_threshold(1000, 10, 10)
    assert gc.get_threshold() == (1000, 10, 10)


@pytest.mark.parametrize("left_early", [False, True])
def test_a_batch_makes_collections_rare_and_restores_them(usual: tuple[int, int, int], left_early: bool) -> None:
    async def batch() -> list[int]:
        seen = []
        runs = run_many([Task(id=str(n), question="Who?") for n in range(4)], ScriptedModel(lambda context: DONE))
        async for _ in runs:
            seen.append(gc.get_threshold()[0])
            if left_early:
                break
        await runs.aclose()
        return seen

    seen = asyncio.run(batch())
    assert len(seen) == (1 if left_early else 4) and min(seen) > usual[0]
    assert gc.get_threshold() == usual
