"""A model that writes its script piece by piece, and stops where a test wants to look."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import accumulate

from coa.models.base import Context, Generation, OnText, Sampling
from coa.models.scripted import ScriptedModel

GATE = "¦"
"""Where this stands in a script, the model waits until the test opens the gate."""
_PIECE = 8


class GatedModel(ScriptedModel):
    """Streams the line of its script whose number is that of the results so far; every run follows the same script."""

    def __init__(self, script: Sequence[str], *, name: str = "gated") -> None:
        super().__init__(lambda context: self._line(context).replace(GATE, ""), name=name)
        self._lines = script
        self._reached = self._opened = 0

    def open_gate(self) -> None:
        """Lets the model write on to the next gate. From any thread; also before the model has come there."""
        self._opened += 1

    def _line(self, context: Context) -> str:
        return self._lines[min(context.text.count("</observation>"), len(self._lines) - 1)]

    async def generate(
        self, context: Context, *, stop: Sequence[str], sampling: Sampling, on_text: OnText = None
    ) -> Generation:
        generation = await super().generate(context, stop=stop, sampling=sampling)
        gates = set(accumulate(len(part) for part in self._line(context).split(GATE)[:-1]))
        ends = {*gates, *range(_PIECE, len(generation.text), _PIECE), len(generation.text)}
        for end in sorted(end for end in ends if end <= len(generation.text)):
            if on_text:
                on_text(generation.text[:end])
            await asyncio.sleep(0)
            if end in gates:
                await self._wait()
        return generation

    async def _wait(self) -> None:
        self._reached += 1
        wanted = self._reached
        while self._opened < wanted:
            await asyncio.sleep(0.005)
