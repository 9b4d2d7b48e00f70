"""Rollout servers that break, for the verl engine: opening this tool breaks them in the process that opens it.

Of all attempts a tenth raise, half of them an error that is not ours, a twentieth hang, and a twentieth write nothing.
Which ones follows from the seed of the attempt, so a retry of an attempt may succeed. Each is noted in the file
`UNSOUND_LOG`, by kind and seed, and so is each opening of the tool, by process.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from coa.errors import ModelError
from coa.models.base import Finish, Generation
from coa.rl.engines.verl import loop
from coa.trajectory import Tokens, Usage
from support.newborn import Knowing

KINDS = {0: "raised", 1: "crashed", 2: "hung", 3: "empty"}
"""By the remainder of the seed."""
_generate = loop.TokenServer.generate


async def _unsound(
    self: loop.TokenServer, context: Any, *, stop: Any, sampling: Any, on_text: Any = None
) -> Generation:
    kind = KINDS.get((sampling.seed or 0) % 20)
    if kind is not None:
        _note(kind, sampling.seed)
    if kind == "raised":
        raise ModelError("broken on purpose")
    if kind == "crashed":
        raise RuntimeError("no error of ours")
    if kind == "hung":
        await asyncio.sleep(3600)
    if kind == "empty":
        return Generation("", Finish.LENGTH, Usage(model_calls=1), Tokens(ids=(), logprobs=()))
    return await _generate(self, context, stop=stop, sampling=sampling, on_text=on_text)


def _note(kind: str, of: object) -> None:
    with open(os.environ["UNSOUND_LOG"], "a") as log:
        log.write(f"{kind} {of}\n")


def knowing() -> Knowing:
    _note("opened", os.getpid())
    loop.TokenServer.generate = _unsound  # type: ignore[method-assign]
    loop.GRACE_S = 1.0  # type: ignore[misc]
    return Knowing()
