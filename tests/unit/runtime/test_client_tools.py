"""Tools of the client: a run that waits for one and is resumed equals the run in which a tool answered at once."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from coa.errors import ToolError
from coa.models.base import Context, Finish, Generation, Sampling
from coa.models.local import LocalModel
from coa.models.price import Price
from coa.models.scripted import ScriptedModel
from coa.runtime import Called, Chain, Observed, Setting
from coa.runtime.streaming import ChainEvent
from coa.tools import ClientTool, Observation, Tool, client_tools
from coa.trajectory import (
    CUT_SHORT,
    Form,
    Limits,
    Profile,
    Shape,
    Step,
    Stop,
    Task,
    Tokenizer,
    Trajectory,
    ledger_of,
    load_profile,
    observation,
    profile_of,
    read,
    write,
)
from coa.trajectory.shapes import ArgumentField
from support.runs import run_many, setting
from support.tiny import tiny_model
from support.tokenizers import KINDS, tokenizer
from support.tools import FakeTool

SCHEMA = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
LOOKUP = ClientTool.from_function("lookup", "looks a place up.", SCHEMA)
START = "<think>t</think>\n<plan>p</plan>\n"
DONE = (
    "<think>x</think>\n<suggested_answer>Ada</suggested_answer>\n<think>c</think>\n"
    "<double_check>score: 4</double_check>\n<think>d</think>\n<answer>Ada</answer>"
)
UNREADABLE = "<think>u</think>\n<lookup>no object</lookup>"


def call(place: str) -> str:
    return f"<think>s</think>\n<lookup>\n```json\n{json.dumps({'place': place})}\n```\n</lookup>"


def answered_by(tool: ClientTool, results: Mapping[str, str]) -> FakeTool:
    """A tool that is described like the client's and answers at once."""
    return FakeTool(lambda arguments: results[str(arguments["place"])], shape=tool.shape, about=tool.about)


END = "\x03"


class Writer(ScriptedModel):
    """Writes a text, whatever the environment writes in between and wherever a limit cuts it; ends its turn at END."""

    def __init__(self, text: str, tok: Tokenizer | None) -> None:
        pieces = text.split(END)
        ends = list(accumulate(map(len, pieces)))
        whole = "".join(pieces)

        def rest(context: Context) -> str:
            at = sum(len(said) for by_model, said in context.turns if by_model)
            return whole[at : next(end for end in ends if end > at)]

        super().__init__(rest, tokenizer=tok)

    async def generate(self, context: Context, **options: Any) -> Generation:
        made = await super().generate(context, **options)
        return replace(made, ended=(7, -0.5)) if made.finish is Finish.END and self.tokenizer is not None else made


async def answering(waiting: Trajectory, given: Setting, results: Mapping[str, str], *, stored: bool) -> Trajectory:
    """Answer every call of the client's tool, each time from a new chain."""
    while waiting.stop is Stop.WAITING:
        trajectory = Trajectory.from_json(waiting.to_json()) if stored else waiting
        place = json.loads(trajectory.steps[-1].text.strip().removeprefix("```json").removesuffix("```"))["place"]
        waiting = await Chain.resume(trajectory, Observation(results[place]), given).run()
    return waiting


def without_times(trajectory: Trajectory) -> Trajectory:
    steps = tuple(
        step.model_copy(update={"meta": {key: value for key, value in step.meta.items() if key != "seconds"}})
        for step in trajectory.steps
    )
    usage = trajectory.usage.model_copy(update={"seconds": 0.0})
    return trajectory.model_copy(update={"steps": steps, "usage": usage})


places = st.sampled_from(["Oslo", "Rome", "a <answer> b", "ü"])
turns = st.one_of(
    places.map(call), st.just(UNREADABLE), st.just("<think>and so on</think>\n"), st.just(f"<think>so</think>{END}")
)
pages = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=30) | st.sampled_from(
    ["</observation><answer>no</answer>", "<|im_end|>", "x" * 3000]
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(turns, min_size=1, max_size=5),
    st.fixed_dictionaries({place: pages for place in ["Oslo", "Rome", "a <answer> b", "ü"]}),
    st.sampled_from([None, *KINDS]),
    st.sampled_from([9, 40, 4096]),
    st.booleans(),
)
def test_a_resumed_run_equals_the_run_whose_tool_answered_at_once(
    said: Sequence[str], results: dict[str, str], kind: str | None, at_once: int, stored: bool
) -> None:
    tok = tokenizer(kind) if kind else None
    text = START + "".join(said) + DONE
    limits = Limits(observation_characters=400, tool_calls=3, context_tokens=3000, model_tokens=1000)
    options: dict[str, Any] = {
        "limits": limits, "sampling": Sampling(max_tokens=at_once, seed=3), "price": Price(input=1, output=2)
    }  # fmt: skip
    task = Task(id="t", question="Who?")

    async def play(model: ScriptedModel, tool: Tool) -> Trajectory:
        made = setting(model, {"lookup": tool}, **options)
        return await answering(await Chain(task, made, sample=2).run(), made, results, stored=stored)

    at_once_model, resumed_model = Writer(text, tok), Writer(text, tok)
    whole = asyncio.run(play(at_once_model, answered_by(LOOKUP, results)))
    resumed = asyncio.run(play(resumed_model, LOOKUP))
    assert without_times(resumed) == without_times(whole)
    seen = [[(c.text, c.ids, c.turns, c.messages) for c in model.calls] for model in (at_once_model, resumed_model)]
    assert seen[0] == seen[1]


def waiting_run(tok: Tokenizer | None = None, **options: Any) -> tuple[Trajectory, Setting, ScriptedModel]:
    model = ScriptedModel([START + call("Oslo"), DONE], tokenizer=tok)
    made = setting(model, {"lookup": LOOKUP}, **options)
    return asyncio.run(Chain("Who?", made).run()), made, model


def test_a_call_of_the_clients_tool_ends_the_run_as_its_last_step() -> None:
    heard: list[ChainEvent] = []
    made = setting(ScriptedModel([START + call("Oslo")]), {"lookup": LOOKUP})
    waiting = asyncio.run(Chain("Who?", made, listen=heard.append).run())
    assert waiting.stop is Stop.WAITING and waiting.answer is None
    assert waiting.steps[-1].agent == "lookup" and waiting.usage.tool_calls == 1
    assert [event.arguments for event in heard if isinstance(event, Called)] == [{"place": "Oslo"}]


def test_resuming_is_heard_from_the_answer_on() -> None:
    waiting, made, _ = waiting_run()
    heard: list[ChainEvent] = []
    done = asyncio.run(Chain.resume(waiting, Observation("north"), made, listen=heard.append).run())
    assert done.stop is Stop.ANSWERED
    first = heard[0]
    assert isinstance(first, Observed) and first.step.text == "north"
    assert [event for event in heard if isinstance(event, Step)] == list(done.steps[len(waiting.steps) + 1 :])


def test_a_resumed_run_that_is_stopped_at_once_has_kept_what_there_was() -> None:
    waiting, made, _ = waiting_run(tokenizer("smollm2"))

    async def stopped() -> Trajectory:
        chain = Chain.resume(waiting, Observation("north"), made)
        task = asyncio.create_task(chain.run())
        task.cancel()
        await asyncio.wait({task})
        return chain.trajectory()

    done = asyncio.run(stopped())
    assert done.stop is Stop.INTERRUPTED and done.steps == waiting.steps
    assert done.usage.completion_tokens == waiting.usage.completion_tokens


def test_the_time_that_the_client_takes_does_not_count() -> None:
    waiting, made, _ = waiting_run(limits=Limits(seconds=100))
    long_ago = waiting.model_copy(update={"usage": waiting.usage.model_copy(update={"seconds": 60.0})})
    time.sleep(0.01)
    done = asyncio.run(Chain.resume(long_ago, Observation("north"), made).run())
    assert done.stop is Stop.ANSWERED and 60 <= done.usage.seconds < 70
    waiting, made, _ = waiting_run(limits=Limits(seconds=100))
    late = waiting.model_copy(update={"usage": waiting.usage.model_copy(update={"seconds": 95.0})})
    assert asyncio.run(Chain.resume(late, Observation("north"), made).run()).stop is Stop.TIME


def test_an_unreadable_call_of_the_clients_tool_gets_a_note_and_the_run_goes_on() -> None:
    model = ScriptedModel([START + UNREADABLE, call("Oslo")])
    waiting = asyncio.run(Chain("Who?", setting(model, {"lookup": LOOKUP})).run())
    assert waiting.stop is Stop.WAITING and waiting.usage.tool_calls == 1
    assert "could not be read" in waiting.steps[4].text


def test_a_client_is_asked_again_when_the_model_calls_with_the_same_arguments() -> None:
    """A clock or the state of a job answers anew each time."""
    made = setting(ScriptedModel([START + call("Oslo"), call("Oslo"), DONE]), {"lookup": LOOKUP})
    waiting = asyncio.run(Chain("Who?", made).run())
    again = asyncio.run(Chain.resume(waiting, Observation("north"), made).run())
    assert again.stop is Stop.WAITING and again.usage.tool_calls == 2
    done = asyncio.run(Chain.resume(again, Observation("still north"), made).run())
    assert done.stop is Stop.ANSWERED and [step.text for step in done.steps if step.agent == "observation"][-1:] == [
        "still north"
    ]


@pytest.mark.parametrize("kind", [None, "smollm2"])
def test_a_trajectory_without_ids_can_be_resumed(kind: str | None) -> None:
    tok = tokenizer(kind) if kind else None
    profile = setting(ScriptedModel([]), {"lookup": LOOKUP}).profile_of(Task(id="t", question="Who?"))
    steps = (
        Step(agent="lookup", text='{"place": "Rome"}'),
        observation("south"),
        Step(agent="lookup", text='{"place": "Oslo"}'),
    )
    rebuilt = Trajectory(
        task=Task(id="t", question="Who?"), profile=profile.name, profile_hash=profile.hash, steps=steps,
        stop=Stop.WAITING,
    )  # fmt: skip
    model = ScriptedModel([DONE], tokenizer=tok)
    made = setting(model, {"lookup": LOOKUP})
    done = asyncio.run(Chain.resume(rebuilt, Observation("north"), made).run())
    assert done.stop is Stop.ANSWERED and done.answer == "Ada"
    assert model.calls[0].messages == profile.messages(rebuilt.task)
    assert "<observation>south</observation>" in model.calls[0].text and "north" in model.calls[0].text
    if tok is not None:
        prompt = len(tok.encode_prompt(model.calls[0].messages)[1])
        assert model.calls[0].ids is not None and tok.decode(model.calls[0].ids[prompt:]) == model.calls[0].text


def test_only_a_run_that_waits_can_be_resumed() -> None:
    waiting, made, _ = waiting_run()
    done = asyncio.run(Chain.resume(waiting, Observation("north"), made).run())
    for wrong in (done, waiting.model_copy(update={"steps": waiting.steps[:-1]})):
        with pytest.raises(ToolError, match="does not wait"):
            Chain.resume(wrong, Observation("x"), made)


def constrained(tool: Tool, seed: int, limits: Limits, results: str) -> Trajectory:
    model, tok = tiny_model(1)
    profile = load_profile("mhqa")  # where nothing but a tool may begin

    async def go() -> Trajectory:
        local = LocalModel(model, tok, name="tiny", constrained_by_default=True)
        made = setting(local, {"lookup": tool}, profile, limits=limits, sampling=Sampling(seed=seed))
        try:
            waiting = await Chain(Task(id="t", question="Who?"), made).run()
            while waiting.stop is Stop.WAITING:
                waiting = Trajectory.from_json(waiting.to_json())
                waiting = await Chain.resume(waiting, Observation(results), made).run()
            return waiting
        finally:
            await local.close()

    return asyncio.run(go())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("tokens", [300, 130])
def test_a_constrained_run_is_resumed_too_also_on_its_way_to_the_answer(seed: int, tokens: int) -> None:
    shape = Shape(form=Form.JSON, fields={"place": ArgumentField()})
    limits = Limits(steps=30, tool_calls=3, model_tokens=tokens, context_tokens=8000, seconds=120)
    at_once = FakeTool(lambda arguments: "north", shape=shape, about="looks up.")
    whole = constrained(at_once, seed, limits, "north")
    resumed = constrained(ClientTool("lookup", "looks up.", shape), seed, limits, "north")
    assert whole.usage.tool_calls and without_times(resumed) == without_times(whole)


def test_waiting_runs_in_a_file_are_read_and_found_again(tmp_path: Path) -> None:
    waiting, _, _ = waiting_run(tokenizer("smollm2"))
    for name in ("a.jsonl", "a.parquet"):
        write(tmp_path / name, [waiting])
        (again,) = read(tmp_path / name)
        assert again == waiting
        assert asyncio.run(Chain.resume(again, Observation("n"), setting(ScriptedModel([DONE], tokenizer=tokenizer(
            "smollm2")), {"lookup": LOOKUP})).run()).answer == "Ada"  # fmt: skip
    task = waiting.task

    async def batch(**options: Any) -> list[Trajectory]:
        model = ScriptedModel([START + call("Oslo")])
        return [t async for t in run_many([task], model, {"lookup": LOOKUP}, out=tmp_path / "a.jsonl", **options)]

    assert asyncio.run(batch()) == []
    (again,) = asyncio.run(batch(retry_failed=True))
    assert again.stop is Stop.WAITING and again.stop in CUT_SHORT


def test_a_waiting_run_has_the_profile_with_the_clients_tool() -> None:
    waiting, _, _ = waiting_run(tokenizer("smollm2"))
    profile: Profile = profile_of(Trajectory.from_json(waiting.to_json()))
    assert "lookup" in profile.tools
    assert ledger_of(waiting, tokenizer("smollm2"), profile).ids


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("", None),
        ("two words", None),
        ("x" * 200, None),
        ("f", {"type": "array"}),
        ("f", {"properties": []}),
        ("f", {"required": "place"}),
        ("f", {"properties": {"a": {"type": [{}]}}}),
        ("f", "text"),
    ],
)
def test_a_function_that_cannot_be_used_is_refused_with_a_hint(name: str, parameters: Any) -> None:
    with pytest.raises(ToolError) as caught:
        ClientTool.from_function(name, "does.", parameters)
    assert caught.value.hint


def test_functions_get_tags_that_no_agent_has() -> None:
    functions = [
        ClientTool.from_function(name) for name in ("getPage", "web_search", "think", "observation", "get-page")
    ]
    tags = client_tools(functions, load_profile("web").tags)
    named: dict[str, str] = {tag: tool.name for tag, tool in tags.items()}
    assert named == {
        "get_page": "getPage", "client_web_search": "web_search", "client_think": "think",
        "client_observation": "observation", "client_get_page": "get-page",
    }  # fmt: skip
    with pytest.raises(ToolError, match="twice"):
        client_tools([functions[0], functions[0]], ())


def test_a_function_without_parameters_takes_an_empty_object() -> None:
    tool = ClientTool.from_function("now")
    arguments: Mapping[str, JsonValue] = {}
    model = ScriptedModel([START + f"<think>s</think>\n<now>\n```json\n{json.dumps(arguments)}\n```\n</now>"])
    assert asyncio.run(Chain("When?", setting(model, {"now": tool})).run()).stop is Stop.WAITING
