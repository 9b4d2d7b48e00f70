"""The same numbers to the last bit, whatever the tools take."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from typing import Any

import torch

from coa.models.base import Context, Sampling
from coa.models.local import LocalModel
from coa.models.local.engine import Engine
from coa.models.local.lockstep import Lockstep
from coa.models.local.request import Request
from support.tiny import tiny_model

RUNS = [7, 11, 13, 17, 19, 23]


def request(run: int) -> Request:
    return Request([1], (), Sampling(seed=run), lambda _: None)


def runs_of(pauses: random.Random, turns: int = 3, max_rows: int = 4) -> dict[int, list[tuple[int, float]]]:
    """Several runs that write, wait for a tool of any duration, and write again; some end before others."""
    weights, tokenizer = tiny_model()
    model = LocalModel(weights, tokenizer, name="tiny", max_rows=max_rows)

    async def run(seed: int, leave) -> list[tuple[int, float]]:  # type: ignore[no-untyped-def]
        ids = tokenizer.encode([f"question {seed}"])[0]
        found: list[tuple[int, float]] = []
        for turn in range(turns - seed % 2):
            sampling = Sampling(1.0, 1.0, 0, 5 + seed % 4, seed)
            made = await model.generate(Context((), "", ids), stop=(), sampling=sampling)
            assert made.tokens is not None and made.tokens.logprobs is not None
            found += zip(made.tokens.ids, made.tokens.logprobs, strict=True)
            ids = [*ids, *made.tokens.ids, *tokenizer.encode([f" seen {turn}"])[0]]
            await asyncio.sleep(pauses.random() * 0.03)
        leave(seed)
        return found

    async def all_of_them() -> dict[int, list[tuple[int, float]]]:
        with model.in_step(RUNS) as leave:
            found = await asyncio.gather(*(run(seed, leave) for seed in RUNS))
        await model.close()
        return dict(zip(RUNS, found, strict=True))

    return asyncio.run(all_of_them())


def test_runs_in_step_are_the_same_to_the_last_bit_whatever_their_tools_take() -> None:
    first = runs_of(random.Random(0))
    assert all(first == runs_of(random.Random(seed)) for seed in (1, 2, 3))


def test_runs_in_step_are_the_same_with_several_engines_too() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        first = runs_of(random.Random(0), max_rows=16)
        assert all(first == runs_of(random.Random(seed), max_rows=16) for seed in (1, 2, 3))
    finally:
        torch.set_num_threads(before)


def test_a_run_comes_back_neither_sooner_nor_later() -> None:
    step = Lockstep([1, 2], pause=3)
    assert not step.complete(0)
    one, two = request(1), request(2)
    step.arrive(two)
    assert not step.complete(0)
    step.arrive(one)
    assert step.complete(0) and step.admitted(0) == [one, two]  # in the order of their names, not of their coming
    step.went(one, clock=5)
    assert step.complete(7) and not step.complete(8) and step.first_due() == 8
    step.arrive(one)
    assert step.admitted(7) == [] and step.admitted(8) == [one]


def test_nobody_waits_for_a_run_that_is_over_or_takes_one_that_was_cancelled() -> None:
    step = Lockstep([1, 2])
    step.leave(1)
    gone = request(2)
    step.arrive(gone)
    gone.cancelled = True
    assert not step.complete(0)  # it comes again, or it ends
    step.leave(2)
    assert step.complete(0) and step.first_due() is None


def in_the_middle_of_a_pass(then: Callable[[Engine, Request], None]) -> bool:
    """Two runs keep step. The first is given up while the engine computes; whether the second still gets its text."""
    weights, tokenizer = tiny_model()
    engine = Engine(weights, tokenizer, max_rows=4)
    reached, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def hold(_: str) -> None:
        reached.set()
        go_on.wait(20)

    def asked(run: int, tokens: int, **rest: Any) -> Request:
        return Request([1, 2, run], (), Sampling(1.0, 1.0, 0, tokens, run), **{"done": lambda _: None, **rest})

    first, second = asked(7, 4000, on_text=hold), asked(11, 40, done=lambda _: done.set())
    engine.keep_step(Lockstep([7, 11]))
    engine.submit(first)
    engine.submit(second)
    assert reached.wait(20)
    first.on_text, first.cancelled = None, True
    then(engine, first)
    go_on.set()
    try:
        return done.wait(5)
    finally:
        engine.close()


def test_a_run_that_is_given_up_and_over_is_not_waited_for() -> None:
    assert in_the_middle_of_a_pass(lambda engine, first: engine.leave(7))


def test_a_run_that_is_given_up_and_asks_again_at_once_is_not_waited_for_twice() -> None:
    def again(engine: Engine, first: Request) -> None:
        engine.submit(Request([1, 2, 3], (), Sampling(1.0, 1.0, 0, 30, 7), lambda _: engine.leave(7)))

    assert in_the_middle_of_a_pass(again)
