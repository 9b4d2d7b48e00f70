"""A model that solves each task as often as a table says: `Solve KEY` by its row for KEY, attempt by attempt."""

from __future__ import annotations

import re
from collections.abc import Mapping

from coa.errors import ModelError
from coa.models.base import Context, Sampling
from coa.models.scripted import ScriptedModel

GOLD, WRONG = "right", "wrong"


class RatedModel(ScriptedModel):
    """A row has a letter for each attempt: `+` solves, `-` fails, `!` is a call that breaks.

    The attempt's number is the seed's, which is what makes one attempt differ from another in a real model too.
    """

    def __init__(self, rates: Mapping[str, str], *, name: str = "rated") -> None:
        super().__init__([], name=name)
        self._rates = rates
        self.made: list[tuple[str, int]] = []

    async def generate(self, context: Context, *, stop, sampling: Sampling, on_text=None):  # type: ignore[no-untyped-def]
        key = re.findall(r"Solve (\w+)", context.messages[-1].content)[-1]
        number = sampling.seed or 0
        self.made.append((key, number))
        what = self._rates[key][number]
        line: str | Exception = f"<think>t</think>\n<answer>{GOLD if what == '+' else WRONG}</answer>"
        if what == "!":
            line = ModelError("the server is gone")
        self._script = lambda context: line
        return await super().generate(context, stop=stop, sampling=sampling, on_text=on_text)
