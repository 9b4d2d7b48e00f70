r"""Mathematical equivalence with math-verify, in worker processes that may hang, swell or die without harm.

What is literally the gold answer is right, and plain numbers are compared as numbers; only the rest is worth a process.
An answer that cannot be read is wrong, and so is one that hangs or breaks the comparison. A gold that cannot be read,
or that hangs or breaks a comparison with itself, leaves the answer unscored.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from typing import Final

from coa.errors import ScoringError
from coa.scoring.answers import AnswerMode, final, golds, matched, mode, unknown_mode
from coa.scoring.base import Verdict, unanswerable
from coa.scoring.exact import exact_match
from coa.scoring.numeric import equal, read_number
from coa.trajectory import Task
from coa.workers import WorkerLost, WorkerPool

_LONGEST: Final = 20_000
_LAYOUT: Final = re.compile(r"\\(?:left|right|displaystyle)(?![A-Za-z])|\\[,;!: ]|[\s$]+")
_FRACTION: Final = re.compile(r"\\[dt]frac(?![A-Za-z])")


class MathScorer:
    """Any number of tasks may ask at once; `workers` formulas are compared at a time. Use from any thread or loop."""

    name = "math"

    def __init__(self, *, workers: int | None = None, timeout_s: float = 10.0, memory_bytes: int = 2 << 30) -> None:
        self._timeout_s = timeout_s
        self._gold_compares: dict[tuple[str, ...], bool] = {}
        processes = workers or min(4, os.cpu_count() or 1)
        self.pool = WorkerPool(
            "coa.scoring.math_worker", processes=processes, timeout_s=timeout_s, memory_bytes=memory_bytes
        )

    async def score(self, task: Task, answer: str | None) -> Verdict:
        verdict = unanswerable(self.name, task, answer)
        if verdict is not None or answer is None:
            return verdict or Verdict(0.0, "no answer was given", self.name)
        how, wanted = mode(task), golds(task)
        if how is None:
            return unknown_mode(self.name, task)
        if matched(answer, wanted, how, literally):
            return Verdict(1.0, "literally the gold answer", self.name)
        by_number = _as_numbers(wanted, final(answer)) if how is AnswerMode.ANY else None
        if by_number is not None:
            return by_number
        if max(map(len, [answer, *wanted])) > _LONGEST:
            return Verdict(0.0, f"longer than {_LONGEST} characters", self.name, certain=False)
        return await self._compare(how, wanted, answer)

    async def close(self) -> None:
        await asyncio.to_thread(self.pool.close)

    async def _compare(self, how: AnswerMode, wanted: list[str], answer: str) -> Verdict:
        found = await self._ask(how, wanted, answer)
        if found.value is None and not found.broken and matched(answer, wanted, how, exact_match):
            return Verdict(1.0, "the gold answer is no formula, and this is the same text", self.name)
        if not found.broken or not await self._compares(how, wanted):
            return found
        # Certain it is not: a judge may see that 4^{500000} is 2^{1000000}.
        reason = f"{found.reason}; the gold answer alone can be compared"
        return Verdict(0.0, reason, self.name, certain=False, detail=found.detail)

    async def _compares(self, how: AnswerMode, wanted: list[str]) -> bool:
        """Whether the gold, given as the answer, is found right. Then what broke a comparison is another answer."""
        key = (how, *wanted)
        if key not in self._gold_compares:
            golden = wanted[0] if how is AnswerMode.ANY else " | ".join(wanted)
            found = await self._ask(how, wanted, golden)
            if found.broken and not found.detail.get("late"):
                return False  # perhaps no process could start; the next answer asks again
            self._gold_compares[key] = found.value == 1.0
        return self._gold_compares[key]

    async def _ask(self, how: AnswerMode, wanted: list[str], answer: str) -> Verdict:
        request = json.dumps({"mode": how, "golds": wanted, "answer": answer}).encode()
        try:
            reply = json.loads(await self.pool.ask(request))
        except WorkerLost as lost:
            reason = f"no verdict within {self._timeout_s:g} seconds" if lost.late else f"the comparison broke: {lost}"
            return Verdict(None, reason, self.name, broken=True, detail={"late": lost.late})
        if "missing" in reply:
            raise ScoringError(
                f"comparing mathematics needs math-verify ({reply['missing']})",
                needs=["eval"],
            )
        return Verdict(**reply, rule=self.name)


def literally(gold: str, part: str) -> bool:
    """The same but for layout."""
    one, other = (_LAYOUT.sub("", _FRACTION.sub(r"\\frac", text)).rstrip(".") for text in (gold, part))
    return one == other


def _as_numbers(wanted: list[str], answer: str) -> Verdict | None:
    """A verdict where gold and answer are numbers, and the same or without units; None where there is more to them."""
    given = read_number(answer)
    numbers = [read_number(gold) for gold in wanted]
    if given is None or any(number is None for number in numbers):
        return None
    # A word beside a number may be a variable, so units must be the same.
    if any(number is not None and number.unit == given.unit and equal(number, given) for number in numbers):
        return Verdict(1.0, "the same number", "math")
    if given.unit or any(number is not None and number.unit for number in numbers):
        return None
    if given.integer and all(number is not None and number.integer for number in numbers):
        return Verdict(0.0, "another number", "math")
    return None
