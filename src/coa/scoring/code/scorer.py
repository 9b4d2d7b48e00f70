"""The scorer `code`: 1 if a program passes all tests of its task, 0 if not, None where the sandbox failed."""

from __future__ import annotations

import asyncio
import re
from typing import Final

from pydantic import JsonValue

from coa.errors import ScoringError
from coa.sandbox import CodeVerdict, Sandbox, open_sandbox
from coa.scoring.base import Verdict
from coa.scoring.code.judge import judge
from coa.scoring.code.problem import problem_of
from coa.trajectory import Form, Reading, Shape, Task
from coa.trajectory.shapes import read

_FENCED: Final = re.compile(r"^```(?:python3?|py)?[ \t]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


class CodeScorer:
    name = "code"

    def __init__(self, sandbox: Sandbox | None = None) -> None:
        """Without a sandbox the scorer opens one at the first program, and closes it."""
        self._sandbox = sandbox
        self._own = sandbox is None
        self._opening = asyncio.Lock()

    async def score(self, task: Task, answer: str | None) -> Verdict:
        try:
            problem = problem_of(task)
        except ScoringError as error:  # of this task alone; the others can be judged
            return Verdict(None, error.message, self.name, broken=True)
        if problem is None:
            return Verdict(None, "the task has no tests", self.name)
        if answer is None or not answer.strip():
            return Verdict(0.0, "no answer was given", self.name)
        judged = await judge(problem, program_in(answer), await self._open(), stop_at_first=True)
        if judged.verdict is CodeVerdict.SANDBOX_ERROR:
            return Verdict(None, judged.note, self.name, broken=True)
        detail: dict[str, JsonValue] = {"verdict": judged.verdict.value, "passed": judged.passed, "tests": judged.total}
        if judged.samples_only:
            detail["samples_only"] = True
        return Verdict(float(judged.verdict is CodeVerdict.AC), judged.note, self.name, detail=detail)

    async def close(self) -> None:
        if self._own and self._sandbox is not None:
            await self._sandbox.close()
            self._sandbox = None

    async def _open(self) -> Sandbox:
        async with self._opening:
            if self._sandbox is None:
                self._sandbox = await open_sandbox()
            return self._sandbox


def program_in(answer: str) -> str:
    """The program of an answer: fenced, of several fences the last, or the whole text."""
    reading = read(Shape(form=Form.CODE), answer)
    if isinstance(reading, Reading):
        return str(reading.arguments["code"])
    fenced = _FENCED.findall(answer)
    return str(fenced[-1]) if fenced else answer
