"""Several engines over one set of weights: the same text as one, each run with the engine that remembers it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest
import torch

from coa.models.base import Context, Generation, Sampling
from coa.models.local import LocalModel
from coa.models.local.engines import WORTHWHILE
from support.tiny import tiny_model

TURNS, SEEN = 4, list(range(20, 50))


@pytest.fixture(params=[1, 2, 3])
def cores(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def ids_of(run: int) -> list[int]:
    return [random.Random(run).randrange(10, 300) for _ in range(40)]


def runs(local: LocalModel, count: int, *, at_once: int | None = None) -> list[list[Generation]]:
    """Each writes, reads what a tool says, and writes again."""

    async def run(number: int, room: asyncio.Semaphore) -> list[Generation]:
        ids, made = ids_of(number), []
        async with room:
            for _ in range(TURNS):
                got = await local.generate(Context([], "", ids), stop=[], sampling=Sampling(0, max_tokens=6))
                assert got.tokens is not None
                ids = [*ids, *got.tokens.ids, *SEEN]
                made.append(got)
                await asyncio.sleep(0)
        return made

    async def all_of_them() -> list[list[Generation]]:
        room = asyncio.Semaphore(at_once or count)
        try:
            return await asyncio.wait_for(asyncio.gather(*(run(number, room) for number in range(count))), 60)
        finally:
            await local.close()

    return asyncio.run(all_of_them())


def test_cores_change_nothing_but_the_time(cores: int) -> None:
    model, tokenizer = tiny_model(3)
    local = LocalModel(model, tokenizer, name="tiny", max_rows=4 * WORTHWHILE)
    assert len(local._engines._all) == cores
    alone = LocalModel(tiny_model(3)[0], tokenizer, name="tiny", max_rows=1)
    expected = [[made.text for made in run] for run in runs(alone, 12)]
    assert [[made.text for made in run] for run in runs(local, 12)] == expected
    assert torch.get_num_threads() == cores  # whoever trains between two calls has all of them


def test_a_run_goes_on_where_it_is_remembered(cores: int) -> None:
    model, tokenizer = tiny_model(4)
    local = LocalModel(model, tokenizer, name="tiny", max_rows=4 * WORTHWHILE)
    for run in runs(local, 20):
        for made in run[1:]:
            assert made.usage.prompt_tokens - made.usage.cached_tokens <= len(SEEN) + 1, made


def test_newcomers_do_not_push_out_who_is_with_a_tool() -> None:
    """More runs than rows: each would lose its context at every call, were rows given to whoever comes first."""
    model, tokenizer = tiny_model(5)
    local = LocalModel(model, tokenizer, name="tiny", max_rows=4)
    made = [again for run in runs(local, 24) for again in run[1:]]
    anew = [again for again in made if again.usage.prompt_tokens - again.usage.cached_tokens > len(SEEN) + 1]
    assert len(anew) <= len(made) / 4, len(anew)


@pytest.mark.parametrize(("count", "second_works"), [(WORTHWHILE, False), (3 * WORTHWHILE, True)])
def test_a_few_requests_share_the_passes_of_one_engine(count: int, second_works: bool) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        local = LocalModel(*tiny_model(6), name="tiny", max_rows=4 * WORTHWHILE)
        runs(local, count)
        first, second = local._engines._all
        assert first.tokens_written > 0 and (second.tokens_written > 0) is second_works
    finally:
        torch.set_num_threads(before)
