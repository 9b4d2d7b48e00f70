"""Bugs that were found once in the runtime; each test failed before its fix."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from coa.models.base import Context, Sampling
from coa.models.scripted import ScriptedModel
from coa.tools import Observation
from coa.trajectory import Limits, Stop, Task, Trajectory, ledger_of, load_profile, profile_of
from support.runs import run, run_many
from support.tokenizers import tokenizer
from support.tools import FakeTool, searching

SEARCH, ANSWER = "<think>t</think>\n<web_search>q</web_search>", "<think>d</think>\n<answer>Ada</answer>"


def two_turns(context: Context) -> str:
    return ANSWER if "<observation>" in context.text else SEARCH


async def collect(tasks: list[Task], tool: FakeTool, **options: object) -> list[Trajectory]:
    runs = run_many(tasks, ScriptedModel(two_turns), {"web_search": tool}, **options)
    return [trajectory async for trajectory in runs]


def tasks(count: int) -> list[Task]:
    return [Task(id=str(n), question="?") for n in range(count)]


def test_a_tool_that_cancels_something_of_its_own_does_not_end_the_batch() -> None:
    async def cancelled() -> str:
        raise asyncio.CancelledError

    done = asyncio.run(collect(tasks(5), FakeTool(lambda arguments: cancelled())))
    assert [t.stop for t in done] == [Stop.ANSWERED] * 5
    assert "the tool was cancelled" in done[0].steps[2].text


def test_closing_early_ends_even_when_a_tool_cleans_up_badly() -> None:
    async def messy() -> str:
        try:
            await asyncio.sleep(3600)
        finally:
            raise RuntimeError("clean-up failed")

    async def go() -> None:
        quick = FakeTool(lambda arguments: messy(), timeout_s=3600)
        plain = iter([*tasks(1)])

        def mixed(context: Context) -> str:
            return ANSWER if next(plain, None) else SEARCH

        runs = run_many(tasks(200), ScriptedModel(mixed), {"web_search": quick}, concurrency=4)
        async for _ in runs:
            break
        await asyncio.wait_for(runs.aclose(), 5)

    asyncio.run(go())


def test_rows_that_cannot_be_run_and_ids_that_repeat_do_not_end_the_batch() -> None:
    odd = [Task(id="a", question="?"), Task(id="a", question="?"), Task(id="b", question="?", profile="nope")]
    done = asyncio.run(collect([*odd, *tasks(2)], searching()))
    assert len(done) == 5 and sum(t.stop is Stop.ANSWERED for t in done) == 4
    assert next(t.failure.message for t in done if t.failure).startswith("ProfileError")


@pytest.mark.parametrize("cut", [12, 14, 16])
def test_an_answer_that_a_length_limit_cut_is_whole_in_the_end(cut: int) -> None:
    tok = tokenizer("smollm2")
    whole = "<answer>forty two and some more words to make it long enough</answer>"

    class Cutting(ScriptedModel):
        async def generate(self, context: Context, *, sampling: Sampling, **options: object):  # type: ignore[no-untyped-def]
            limited = Sampling(max_tokens=cut if not context.text else 4000)
            return await super().generate(context, sampling=limited, **options)  # type: ignore[arg-type]

    model = Cutting(lambda context: whole[len(context.text) :], tokenizer=tok)
    done = asyncio.run(run("?", model, profile="nano"))
    assert done.stop is Stop.ANSWERED and done.answer == whole.removeprefix("<answer>").removesuffix("</answer>")
    assert ledger_of(done, tok, load_profile("nano")).to_sample().logprobs is not None


def test_a_run_with_an_extra_tool_can_be_read_later() -> None:
    tok = tokenizer("smollm2")
    script = ["<think>t</think>\n<plan>p</plan>\n<think>c</think>\n<calc>1+1</calc>", ANSWER]
    tool = FakeTool(lambda arguments: "2, see </calc> and <calc>")
    done = asyncio.run(run("?", ScriptedModel(script, tokenizer=tok), {"calc": tool}))
    again = Trajectory.from_json(done.to_json())
    profile = profile_of(again)
    assert "calc" in profile.tools and ledger_of(again, tok, profile).to_sample().trained > 0


@pytest.mark.parametrize(
    "answer",
    [lambda a: None, lambda a: Observation(None), lambda a: Observation("x", meta={"bad": {1, 2}})],  # type: ignore[arg-type, dict-item]
)
def test_tools_that_return_nonsense_are_answered_for(answer: object) -> None:
    done = asyncio.run(collect(tasks(1), FakeTool(answer)))  # type: ignore[arg-type]
    assert done[0].stop is Stop.ANSWERED


def test_a_model_that_breaks_in_any_way_is_a_failure_and_no_exception() -> None:
    def broken(context: Context) -> str:
        raise KeyError("id")

    done = asyncio.run(run("?", ScriptedModel(broken)))
    assert done.stop is Stop.FAILED and done.failure is not None and "cannot be used" in done.failure.message


def test_a_page_is_cut_to_the_context() -> None:
    tok = tokenizer("smollm2")
    sizes: list[int] = []

    def script(context: Context) -> str:
        sizes.append(len(context.ids or ()))
        return "Ada</answer>" if context.text.endswith("<answer>") else two_turns(context)

    limits = Limits(context_tokens=1200, model_tokens=600, observation_characters=100_000)
    page = searching("many words " * 5000)
    done = asyncio.run(run("?", ScriptedModel(script, tokenizer=tok), {"web_search": page}, "nano", limits=limits))
    assert done.stop is Stop.ANSWERED and max(sizes) < 1200
    assert "characters omitted ...]" in done.steps[2].text


def test_a_model_that_says_nothing_is_not_asked_for_ever() -> None:
    class Silent(ScriptedModel):
        async def generate(self, context: Context, **options: object):  # type: ignore[no-untyped-def]
            made = await super().generate(context, **options)  # type: ignore[arg-type]
            import dataclasses

            from coa.models.base import Finish

            return dataclasses.replace(made, finish=Finish.LENGTH)

    model = Silent(lambda context: "")
    done = asyncio.run(run("?", model, limits=Limits(seconds=20)))
    assert done.stop is Stop.UNANSWERED and len(model.calls) < 10


@pytest.mark.parametrize("kind", [None, "smollm2"])
def test_a_lone_surrogate_in_a_page_does_not_end_the_run(kind: str | None) -> None:
    model = ScriptedModel(two_turns, tokenizer=tokenizer(kind) if kind else None)
    done = asyncio.run(run("?", model, {"web_search": searching("half \ud83d of a pair")}))
    assert done.stop is Stop.ANSWERED and done.steps[2].text == "half ? of a pair"


def test_a_lone_surrogate_in_what_a_tool_notes_does_not_end_the_batch(tmp_path: Path) -> None:
    tool = FakeTool(lambda arguments: Observation("x", meta={"title": "\ud83d", "list": [{"\ud83d": "\ud83d"}]}))
    done = asyncio.run(collect(tasks(3), tool, out=tmp_path / "runs.jsonl"))
    assert [t.stop for t in done] == [Stop.ANSWERED] * 3
    assert done[0].steps[2].meta["title"] == "?"


def test_a_tool_that_ignores_its_cancellation_ends_its_own_call_only() -> None:
    async def stubborn() -> str:
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                continue

    tool = FakeTool(lambda arguments: stubborn(), timeout_s=0.05)
    done = asyncio.run(collect(tasks(3), tool))  # also ends: nothing is left for the loop to wait for
    assert [t.stop for t in done] == [Stop.ANSWERED] * 3
    assert all("no answer within" in t.steps[2].text for t in done)


class Panic(BaseException):
    """As libraries in other languages raise it."""


@pytest.mark.parametrize("error", [SystemExit(3), Panic("overflow")])
def test_a_tool_that_exits_or_panics_ends_its_own_call_only(error: BaseException) -> None:
    def leaving(arguments: object) -> str:
        raise error

    done = asyncio.run(collect(tasks(3), FakeTool(leaving)))
    assert [t.stop for t in done] == [Stop.ANSWERED] * 3
    assert f"{type(error).__name__}: {error}" in done[0].steps[2].text


def test_a_run_can_be_interrupted_while_a_tool_ignores_it() -> None:
    async def go() -> None:
        started = asyncio.Event()

        async def stubborn() -> str:
            started.set()
            while True:
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    continue

        tool = FakeTool(lambda arguments: stubborn(), timeout_s=3600)
        running = asyncio.create_task(run("?", ScriptedModel(two_turns), {"web_search": tool}))
        await started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(go())
