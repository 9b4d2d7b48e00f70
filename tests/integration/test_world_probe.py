"""Nobody has read of the atlas: without its tools the embedded model does not know the answers."""

from __future__ import annotations

import asyncio

from coa.models.base import Sampling, complete
from coa.models.local import load_local
from coa.scoring import scorer_for
from coa.trajectory import Message
from coa.worlds.atlas import Atlas
from coa.worlds.atlas.entities import Split

TASKS = 40


def test_the_base_model_knows_about_none_of_the_answers() -> None:
    """Of a comparison it may pick the right one of two, and so it may of sums that are easy: neither is asked here."""
    tasks = [task for task in Atlas(7).tasks(Split.TEST) if task.meta["family"] not in ("comparison", "code_only")][
        :TASKS
    ]

    async def go() -> float:
        model, scorer = load_local("smollm2", max_rows=TASKS), scorer_for("exact")

        async def asked(question: str) -> str:
            wanted = [Message(role="user", content=f"{question} Answer with the name or the number, nothing else.")]
            said = await complete(model, wanted, sampling=Sampling(temperature=0, max_tokens=16))
            return said.strip().rstrip(".")

        try:
            said = await asyncio.gather(*(asked(task.question) for task in tasks))
            assert sum(bool(answer) for answer in said) > TASKS / 2, "it does answer"
            scores = [await scorer.score(task, answer) for task, answer in zip(tasks, said, strict=True)]
            return sum(score.value or 0 for score in scores)
        finally:
            await model.close()
            await scorer.close()

    assert asyncio.run(go()) <= 0.05 * TASKS
