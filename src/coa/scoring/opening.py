"""A scorer and the judge behind it, opened together and closed together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path

from coa.choices import Mode
from coa.models.base import Model
from coa.models.opening import open_model
from coa.scoring.base import Scorer
from coa.scoring.registry import scorer_for
from coa.scoring.verdicts import VerdictCache
from coa.trajectory.types import Frozen


class JudgeConfig(Frozen):
    """Settings of the model that judges answers which no rule can compare."""

    judge: str | None = None
    """URL of the server of the model that judges answers, or any other model name that `coa run --model` takes."""
    judge_name: str | None = None
    """Name of the judge on a server that serves several models."""
    judge_key_env: str = "COA_API_KEY"
    """Environment variable that holds the key of the judge's server."""


@asynccontextmanager
async def open_judge(config: JudgeConfig) -> AsyncIterator[Model | None]:
    """The judge, closed at the end; None where the config names none."""
    if config.judge is None:
        yield None
        return
    judge = await open_model(config.judge, config.judge_name, mode=Mode.CHAT, api_key_env=config.judge_key_env)
    try:
        yield judge
    finally:
        await judge.close()


@asynccontextmanager
async def open_scorer(name: str, judge: Model | None = None, *, verdicts: Path | None = None) -> AsyncIterator[Scorer]:
    """The scorer of that name, closed at the end. Judged answers are kept in the file `verdicts` and not paid twice."""
    async with AsyncExitStack() as stack:
        kept = None
        if judge is not None and verdicts is not None:
            kept = stack.enter_context(closing(VerdictCache(verdicts)))
        scorer = scorer_for(name, judge=judge, verdicts=kept)
        stack.push_async_callback(scorer.close)
        yield scorer
