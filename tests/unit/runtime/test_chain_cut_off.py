"""A model that is cut off while it writes: by the time, by Ctrl-C, or because it never answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from coa.models.base import Context, Generation
from coa.models.scripted import ScriptedModel
from coa.trajectory import Limits, Stop, Trajectory, to_sample
from support.builders import WEB
from support.runs import chain as chain_of
from support.runs import run
from support.tokenizers import tokenizer

WRITTEN = "<think>t</think>\n<plan>p</plan>\n<think>half a thou"


class Streaming(ScriptedModel):
    """Tells what it writes and hangs before it has ended, except when it is given the answer to fill in."""

    writing = False

    async def generate(
        self, context: Context, *, on_text: Callable[[str], None] | None = None, **options: object
    ) -> Generation:
        if context.text.endswith("<answer>"):
            return await super().generate(context, **options)  # type: ignore[arg-type]
        if on_text is not None:
            for end in range(len(WRITTEN) + 1):
                on_text(WRITTEN[:end])
        self.writing = True
        await asyncio.sleep(3600)
        raise AssertionError("unreachable")


def assert_kept(done: Trajectory) -> None:
    kept = done.steps[:3]
    assert [(step.agent, step.text) for step in kept] == [("think", "t"), ("plan", "p"), ("think", "half a thou")]
    assert all(step.meta["partial"] is True and step.tokens is None for step in kept)
    assert Trajectory.from_json(done.to_json()) == done


@pytest.mark.parametrize("kind", [None, "smollm2"])
def test_what_was_heard_before_the_time_ran_out_is_kept_and_concluded(kind: str | None) -> None:
    tok = tokenizer(kind) if kind else None
    model = Streaming(["Ada</answer>"], tokenizer=tok)
    done = asyncio.run(run("Who?", model, limits=Limits(seconds=2), listen=lambda event: None))
    assert done.stop is Stop.TIME and done.answer == "Ada"
    assert_kept(done)
    assert model.calls[0].text == WRITTEN + "</think>\n<answer>"
    assert done.usage.model_calls == 2
    if tok is not None:
        ids = model.calls[0].ids
        assert ids is not None and tok.decode(ids).endswith(WRITTEN + "</think>\n<answer>")
        sample = to_sample(done, tok, WEB)
        assert sample.trained and sample.logprobs is None, "to be read as text, not to be trained on by RL"
        assert done.usage.completion_tokens >= len(tok.encode([WRITTEN])[0])


def test_what_was_heard_before_ctrl_c_is_kept() -> None:
    model = Streaming([])
    chain = chain_of("Who?", model, listen=lambda event: None)

    async def interrupt() -> None:
        task = asyncio.create_task(chain.run())
        while not model.writing:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(interrupt())
    partial = chain.trajectory()
    assert partial.stop is Stop.INTERRUPTED and len(partial.steps) == 3
    assert_kept(partial)
