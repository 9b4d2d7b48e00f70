"""The embedded weights as they come: they have never seen these agents, and still write a legal chain."""

from __future__ import annotations

import asyncio

from coa.models.base import Sampling
from coa.models.local import load_local
from coa.trajectory import Limits, Trajectory, check, load_profile
from support.runs import run


def test_the_untrained_model_answers_legally_within_its_budget() -> None:
    limits = Limits(steps=20, tool_calls=2, model_tokens=160, context_tokens=1024, seconds=240)

    async def go() -> Trajectory:
        model = load_local("smollm2", max_rows=1)
        try:
            return await run("Which river ends here?", model, {}, "nano", limits=limits, sampling=Sampling(seed=1))
        finally:
            await model.close()

    made = asyncio.run(go())
    assert made.answer and made.failure is None
    assert check(made.steps, load_profile("nano")) == () and not any(step.repairs for step in made.steps)
    assert made.usage.completion_tokens <= limits.model_tokens
    assert all(step.meta["constrained"] for step in made.steps)
