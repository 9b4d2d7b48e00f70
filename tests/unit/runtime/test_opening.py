"""From a config and objects of the caller's to a setting."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import coa
from coa.errors import ConfigError
from coa.models.scripted import ScriptedModel
from support.tools import searching

ANSWER = "<think>d</think>\n<answer>Ada</answer>"


def opened(**objects: Any) -> coa.Setting:
    async def go() -> coa.Setting:
        async with coa.open_setting(coa.RunConfig(profile="nano"), **objects) as setting:
            return setting

    return asyncio.run(go())


def test_objects_take_the_place_of_what_the_config_names() -> None:
    model, tool = ScriptedModel([ANSWER]), searching()
    setting = opened(model=model, tools={"web_search": tool})
    assert setting.model is model and setting.tools["web_search"] is tool and setting.profile.name == "nano"
    assert coa.ask("Who?", model=ScriptedModel([ANSWER]), profile="nano").answer == "Ada"


def test_an_object_that_is_no_model_or_tool_is_refused_before_anything_runs() -> None:
    class Half:
        about, timeout_s = "half a tool", 1.0

    with pytest.raises(ConfigError, match=r"the tool half has no shape, call\n  hint: it needs about, shape"):
        opened(model=ScriptedModel([]), tools={"half": Half()})
    with pytest.raises(ConfigError, match=r"the tool half is the class Half, not an object\n  hint: give Half\(\)"):
        opened(model=ScriptedModel([]), tools={"half": Half})
    with pytest.raises(ConfigError, match="the model has no name, tokenizer, generate, close"):
        opened(model=object())


def test_nano_alone_goes_to_the_world_that_it_was_trained_in() -> None:
    assert coa.RunConfig(model="nano").resolved().world == "atlas"
    assert coa.RunConfig(model="nano").resolved().profile == "atlas"
    assert coa.RunConfig(model="nano", profile="web").resolved().world is None
    assert coa.RunConfig(world="atlas", profile="web").resolved().profile == "web"


def test_what_the_config_leaves_open_is_filled_and_nothing_else() -> None:
    config = coa.RunConfig(temperature=0.0).filled(temperature=1.0, top_p=0.5)
    assert (config.temperature, config.top_p) == (0.0, 0.5)
    assert config.sampling() == coa.Sampling(temperature=0.0, top_p=0.5, top_k=20, max_tokens=4096, seed=None)


def test_a_limit_that_does_not_exist_is_named_with_those_that_do() -> None:
    with pytest.raises(ConfigError, match="there is no limit 'minutes'; limits are steps, tool_calls"):
        coa.ask("Who?", limits={"minutes": 3})


def test_a_question_after_a_run_has_its_conversation() -> None:
    first = coa.ask("Who?", model=ScriptedModel([ANSWER]), profile="nano")
    model = ScriptedModel([ANSWER])
    second = coa.ask("And when?", after=first, model=model, profile="nano")
    assert [message.content for message in model.calls[0].messages[1:]] == ["Who?", "Ada", "And when?"]
    assert second.task.conversation == first.follow_up("And when?").conversation
    with pytest.raises(ConfigError, match="its own conversation"):
        coa.ask(coa.Task(id="t", question="When?"), after=first, model=model)
