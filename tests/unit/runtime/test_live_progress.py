"""What a batch says about itself while its runs are still under way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

from coa.models.base import Context, Generation, OnText, Sampling
from coa.models.scripted import ScriptedModel
from coa.progress import Silent
from coa.runtime import BatchProgress
from coa.trajectory import Stop, Task
from support.runs import run_many
from support.tools import FakeTool

SEARCH = "<think>t</think>\n<web_search>{}</web_search>"
ANSWER = "<think>d</think>\n<answer>Ada</answer>"


class Shown(Silent):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.notes: list[str] = []

    def start(self, title: str, total: int | None = None) -> None:
        self.said.append(f"start {title} {total}")

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        self.notes.append(f"{done}/{total} {note}")

    def finish(self) -> None:
        self.said.append("finish")


class Counting(ScriptedModel):
    """A model that counts while it writes, as the local engine does, and has written 100 tokens before."""

    tokens_written = 100

    async def generate(
        self, context: Context, *, stop: Sequence[str], sampling: Sampling, on_text: OnText = None
    ) -> Generation:
        self.tokens_written += 40
        return await super().generate(context, stop=stop, sampling=sampling, on_text=on_text)


def test_tokens_and_calls_of_runs_that_have_not_ended_are_counted() -> None:
    seen: list[tuple[int, int, int, int, str]] = []
    progress = BatchProgress(total=1)

    async def look() -> str:
        chains = [chain for _, chain in progress.running.values()]
        written = sum(chain.usage.completion_tokens for chain in chains)
        seen.append((written, progress.tokens_written, progress.model_calls, progress.tool_calls, progress.status()))
        return "x"

    def script(context: Context) -> str:
        return ANSWER if "<observation>" in context.text else SEARCH.format("who")

    async def go() -> None:
        tool = FakeTool(lambda arguments: look())
        runs = run_many([Task(id="1", question="?")], ScriptedModel(script), {"web_search": tool}, progress=progress)
        assert [trajectory.stop async for trajectory in runs] == [Stop.ANSWERED]

    asyncio.run(go())
    ((written, tokens, calls, tools, status),) = seen
    assert written == tokens > 0 and (calls, tools) == (1, 1)
    assert f"{tokens:,} tokens" in status and "1 model call and 1 tool call" in status and "1 running" in status
    assert progress.tokens_written == progress.usage.completion_tokens > tokens and not progress.running


def test_a_model_that_counts_while_it_writes_is_believed_and_only_for_this_batch() -> None:
    progress = BatchProgress(total=1)
    seen: list[int] = []

    def script(context: Context) -> str:
        seen.append(progress.tokens_written)  # in the middle of the only call
        return ANSWER

    async def go() -> None:
        async with aclosing(run_many([Task(id="1", question="?")], Counting(script), progress=progress)) as runs:
            async for _ in runs:
                pass

    asyncio.run(go())
    assert seen == [40]


def test_a_callers_progress_is_enough_for_run_many() -> None:
    shown = Shown()

    async def go() -> int:
        given = [Task(id=str(n), question="?") for n in range(3)]
        runs = run_many(given, ScriptedModel(lambda context: ANSWER), samples=2, progress=shown)
        return len([trajectory async for trajectory in runs])

    assert asyncio.run(go()) == 6
    assert shown.said == ["start runs 6", "finish"]
    assert shown.notes[0].startswith("0/6") and shown.notes[-1].startswith("6/6 6 answered")
