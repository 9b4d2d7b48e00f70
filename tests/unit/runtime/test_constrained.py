"""Constrained runs: a model that knows nothing writes legal chains, within budget, and what was done to it is told."""

from __future__ import annotations

import asyncio

import pytest
import torch

from coa.choices import Constrain
from coa.errors import ModelError
from coa.models.base import Sampling
from coa.models.local import LocalModel
from coa.models.price import Price
from coa.models.scripted import ScriptedModel
from coa.tools import Tool
from coa.trajectory import Form, Limits, Shape, Stop, Trajectory, check, ledger_of, load_profile, profile_of
from coa.trajectory.profile import shipped
from coa.trajectory.shapes import ArgumentField, FieldType
from support.runs import run
from support.tiny import tiny_model
from support.tools import FakeTool, searching

LIMITS = Limits(steps=40, tool_calls=3, model_tokens=450, context_tokens=8000, seconds=120)


def runs(
    profile: str,
    tools: dict[str, Tool],
    *,
    count: int = 5,
    limits: Limits = LIMITS,
    constrain: str = "auto",
    price: Price | None = None,
) -> list[Trajectory]:
    """All at once, each with a seed of its own."""
    model, tok = tiny_model(count)

    async def go() -> list[Trajectory]:
        local = LocalModel(model, tok, name="tiny", constrained_by_default=True)
        settings = [Sampling(seed=seed) for seed in range(count)]
        try:
            calls = [
                run("Who?", local, tools, profile, limits=limits, sampling=setting, constrain=constrain, price=price)
                for setting in settings
            ]
            return await asyncio.gather(*calls)
        finally:
            await local.close()

    return asyncio.run(go())


def assert_legal(made: Trajectory, limits: Limits = LIMITS) -> None:
    profile = profile_of(made)
    assert made.failure is None and made.answer and made.answer.strip()
    assert check(made.steps, profile) == ()
    assert [step.repairs for step in made.steps if step.repairs] == []
    assert made.usage.completion_tokens <= limits.model_tokens
    assert made.usage.tool_calls <= limits.tool_calls


@pytest.mark.parametrize("profile", shipped())
def test_every_run_of_a_model_that_knows_nothing_is_legal(profile: str) -> None:
    tools: dict[str, Tool] = {tag: searching() for tag in load_profile(profile).tools}
    for made in [*runs(profile, tools), *runs(profile, {}, count=2)]:
        assert_legal(made)
        assert all(step.meta.get("constrained") for step in made.steps if step.author == "model")


def test_a_tool_that_the_profile_does_not_know_is_called_in_its_shape() -> None:
    fields = {"place": ArgumentField(), "days": ArgumentField(type=FieldType.INTEGER, required=False)}
    tool = FakeTool(lambda arguments: "rain", shape=Shape(form=Form.JSON, fields=fields), about="tells the weather.")
    for made in runs("mhqa", {"weather": tool}, count=3):  # where nothing but a tool, and only this one, may begin
        assert_legal(made)
    assert tool.asked and all(isinstance(arguments["place"], str) for arguments in tool.asked)


def test_a_short_budget_is_kept_and_the_way_home_is_told() -> None:
    limits = LIMITS.model_copy(update={"model_tokens": 240})
    led = 0
    for made in runs("web", {"web_search": searching()}, limits=limits):
        assert_legal(made, limits)
        marked = [step.meta.get("led") for step in made.steps if "led" in step.meta]
        assert (made.stop is Stop.ANSWERED) is (not marked)
        assert all(reason == made.stop for reason in marked)
        led += bool(marked)
    assert led  # half of 240 less a quarter is soon too little for a step


@pytest.mark.parametrize("cost", [0.002, 0.004])
def test_the_way_home_costs_no_more_than_is_left(cost: float) -> None:
    limits = Limits(cost=cost, model_tokens=3000, context_tokens=6000)
    for made in runs("nano", {}, limits=limits, constrain="always", price=Price(input=1, output=10)):
        assert made.failure is None and made.usage.cost is not None and made.usage.cost <= cost
        assert made.stop in (Stop.ANSWERED, Stop.COST)


def test_where_the_time_ran_out_the_way_home_is_short() -> None:
    model, tok = tiny_model(1)
    asked: list[int] = []

    class Hanging(LocalModel):
        async def generate(self, context, *, sampling, **options):  # type: ignore[no-untyped-def]
            asked.append(sampling.max_tokens)
            if len(asked) == 1:
                await asyncio.sleep(3600)
            return await super().generate(context, sampling=sampling, **options)

    async def go() -> None:
        local = Hanging(model, tok, name="tiny")
        try:
            await run("Who?", local, {}, "nano", limits=Limits(seconds=1), constrain="always")
        finally:
            await local.close()

    asyncio.run(go())
    assert len(asked) > 1 and max(asked[1:]) < 150, "thousands do not fit into the tenth of the time that is kept back"


def test_money_that_leaves_no_room_for_a_step_is_the_reason_told() -> None:
    limits = Limits(cost=0.04, model_tokens=3000, context_tokens=6000)
    price = Price(input=1, output=10)
    made = runs("web", {"web_search": searching()}, count=3, limits=limits, constrain="always", price=price)
    assert {run.stop for run in made} == {Stop.COST}


def test_logprobs_are_those_of_a_plain_forward_pass_and_the_kept_mass_makes_up_the_rest() -> None:
    model, tok = tiny_model(6)
    [made, *_] = runs("nano", {}, count=6)
    spans = ledger_of(made, tok, load_profile("nano"), end_of_turn=False).spans
    ids = [token for span in spans for token in span.ids]
    told = [logprob for span in spans for logprob in span.logprobs or [None] * len(span.ids)]
    with torch.inference_mode():
        plain = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    sampled = [(at, logprob) for at, logprob in enumerate(told) if logprob is not None]
    assert sampled
    for at, logprob in sampled:
        assert plain[at - 1, ids[at]].item() == pytest.approx(logprob, abs=1e-4)
    for step in made.steps:
        assert step.tokens is not None and step.tokens.logprobs is not None
        kept = step.meta["log_kept"]
        assert isinstance(kept, float) and sum(step.tokens.logprobs) - 1e-3 <= kept <= 0


def test_never_means_never_and_auto_leaves_other_models_alone() -> None:
    for made in runs("nano", {}, count=2, constrain="never"):
        assert not any("constrained" in step.meta for step in made.steps)
    scripted = ScriptedModel(["<answer>Ada</answer>"])
    made = asyncio.run(run("Who?", scripted, {}, "nano"))
    assert made.answer == "Ada" and "constrained" not in made.steps[0].meta


def test_a_model_that_takes_no_grammar_is_refused_where_one_is_asked_for() -> None:
    scripted = ScriptedModel(["<answer>Ada</answer>"])
    with pytest.raises(ModelError, match="cannot be held to the protocol") as refusal:
        asyncio.run(run("Who?", scripted, {}, "nano", constrain=Constrain.ALWAYS))
    assert "constrain=never" in (refusal.value.hint or "")
