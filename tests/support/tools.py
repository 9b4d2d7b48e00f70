"""Small tools for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from pydantic import JsonValue

from coa.tools import Observation, ToolContext
from coa.trajectory import Form, Shape

Answer = Callable[[Mapping[str, JsonValue]], str | Observation | Awaitable[str]]


class FakeTool:
    """Answers with what a function says; remembers what it was asked."""

    def __init__(
        self, answer: Answer, *, timeout_s: float = 5.0, shape: Shape | None = None, about: str = "answers."
    ) -> None:
        self.answer = answer
        self.timeout_s = timeout_s
        self.shape = shape or Shape(form=Form.LINE)
        self.about = about
        self.asked: list[Mapping[str, JsonValue]] = []
        self.contexts: list[ToolContext] = []

    async def call(self, arguments: Mapping[str, JsonValue], context: ToolContext) -> Observation:
        self.asked.append(arguments)
        self.contexts.append(context)
        answer = self.answer(arguments)
        if isinstance(answer, Awaitable):
            answer = await answer
        return Observation(answer) if isinstance(answer, str) else answer


def searching(text: str = "Ada Lovelace") -> FakeTool:
    return FakeTool(lambda arguments: text)


def hanging(seconds: float = 3600.0, *, timeout_s: float = 0.05) -> FakeTool:
    async def hang() -> str:
        await asyncio.sleep(seconds)
        return "too late"

    return FakeTool(lambda arguments: hang(), timeout_s=timeout_s)


def failing() -> FakeTool:
    def fail(arguments: Mapping[str, JsonValue]) -> str:
        raise RuntimeError("the index is gone")

    return FakeTool(fail)
