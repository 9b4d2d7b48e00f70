"""Tasks of reasoning-gym, a second source of questions that a program answers. An optional package makes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from coa.errors import WorldError
from coa.trajectory.types import Task
from coa.worlds.atlas.questions import PROFILE, Family

DATASETS: Final = ("chain_sum", "products", "gcd", "lcm", "count_primes", "letter_counting")
"""Generators whose answer is one number, which exact match can judge."""


def gym_tasks(count: int, seed: int, datasets: Sequence[str] = DATASETS) -> Iterator[Task]:
    """`count` tasks, one of each generator in turn."""
    try:
        import reasoning_gym
    except ImportError as error:
        raise WorldError(f"these tasks need reasoning-gym ({error})", needs=["worlds"]) from error
    made = []
    for name in datasets:
        try:
            made.append(reasoning_gym.create_dataset(name, size=-(-count // len(datasets)), seed=seed))
        except ValueError as error:
            raise WorldError(f"reasoning-gym: {error}", hint=f"use for instance {', '.join(DATASETS)}") from error
    for number in range(count):
        turn, which = divmod(number, len(datasets))
        row, name = made[which][turn], datasets[which]
        meta = {"family": Family.CODE_ONLY.value, "source": "reasoning-gym", "dataset": name, "hops": 0}
        question, answer = str(row["question"]).strip(), (str(row["answer"]),)
        yield Task(id=f"gym-{name}-{seed}-{turn:04}", question=question, answer=answer, profile=PROFILE, meta=meta)
