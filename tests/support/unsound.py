"""Rollout servers that break, for the verl engine: opening this tool breaks them in the process that opens it.

Of all attempts a tenth raise, a twentieth hang, and a twentieth end their turn at once. Which ones follows from the
seed of the attempt, so a retry of an attempt may succeed.
"""

from __future__ import annotations

import asyncio
from typing import Any

from coa.errors import ModelError
from coa.models.base import Finish, Generation
from coa.rl.engines.verl import loop
from coa.trajectory import Tokens, Usage
from support.newborn import Knowing

_generate = loop.TokenServer.generate


async def _unsound(
    self: loop.TokenServer, context: Any, *, stop: Any, sampling: Any, on_text: Any = None
) -> Generation:
    share = (sampling.seed or 0) % 20
    if share in (0, 1):
        raise ModelError("broken on purpose")
    if share == 2:
        await asyncio.sleep(3600)
    if share == 3:
        return Generation("", Finish.LENGTH, Usage(model_calls=1), Tokens(ids=(), logprobs=()))
    return await _generate(self, context, stop=stop, sampling=sampling, on_text=on_text)


def knowing() -> Knowing:
    loop.TokenServer.generate = _unsound  # type: ignore[method-assign]
    loop.GRACE_S = 1.0  # type: ignore[misc]
    return Knowing()
