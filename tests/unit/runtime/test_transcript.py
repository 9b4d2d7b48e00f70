"""The transcript by itself: text, ids, steps and state grow together, whoever writes and wherever a limit cuts."""

from __future__ import annotations

import pytest

from coa.models.base import Finish, Generation
from coa.runtime.streaming import PartialGeneration
from coa.runtime.transcript import GenerationRequest, Transcript
from coa.trajectory import Author, Delta, Message, Opened, Step, Stop, Tokens, Usage, observation
from support.builders import WEB
from support.tokenizers import tokenizer

PROMPT = (Message(role="user", content="Who?"),)
REQUEST = GenerationRequest(("</answer>", "<observation>", "</web_search>"), 100)


def transcript(kind: str | None = None, heard: list[Step] | None = None) -> Transcript:
    made = Transcript(WEB, tokenizer(kind) if kind else None, PROMPT, heard.append if heard is not None else None)
    made.open()
    return made


def written(text: str, finish: Finish = Finish.STOP, kind: str | None = None) -> Generation:
    usage = Usage(prompt_tokens=10, completion_tokens=5, model_calls=1)
    ids = tuple(tokenizer(kind).encode([text])[0]) if kind else ()
    return Generation(text, finish, usage, Tokens(ids=ids, logprobs=(-0.5,) * len(ids)) if kind else None)


@pytest.mark.parametrize("kind", [None, "smollm2"])
def test_two_halves_of_a_generation_are_read_as_one(kind: str | None) -> None:
    heard: list[Step] = []
    made = transcript(kind, heard)
    made.append_generation(written("<think>a</think>\n<web_sea", Finish.LENGTH, kind), REQUEST)
    assert [step.agent for step in made.steps] == ["think", "think"], "half a tag is text, for now"
    assert made.unfinished is not None and made.unfinished.text == "<think>a</think>\n<web_sea"
    steps = made.append_generation(written("rch>who</web_search>", kind=kind), REQUEST)
    assert [(step.agent, step.text) for step in steps] == [("think", "a"), ("web_search", "who")]
    assert tuple(made.steps) == steps and made.unfinished is None and made.state.waiting == "web_search"
    assert tuple(heard) == steps, "a listener hears a step once, when it is complete"
    assert made.context().text == "<think>a</think>\n<web_search>who</web_search>"
    if kind:
        sampled = [i for step in steps if step.tokens is not None for i in step.tokens.ids]
        ids = made.context().ids
        assert ids is not None and list(ids[-len(sampled) :]) == sampled, "each id belongs to one step"


def test_an_observation_ends_what_a_limit_cut() -> None:
    made = transcript()
    made.append_generation(written("<think>a", Finish.LENGTH), REQUEST)
    made.append_step(observation("go on", meta={"ok": False}))
    assert made.unfinished is None
    made.append_generation(written("<answer>Ada</answer>"), REQUEST)
    assert [step.agent for step in made.steps] == ["think", "observation", "answer"]
    turns = made.context().turns
    assert [by_model for by_model, _ in turns] == [True, False, True]
    assert turns[1][1] == "</think>\n<observation>go on</observation>\n", "the environment closes what the limit cut"


@pytest.mark.parametrize(("before", "opening"), [("", "<answer>"), ("<think>a</think>", "\n<answer>")])
def test_the_model_fills_in_an_opening_that_is_not_its_own(before: str, opening: str) -> None:
    made = transcript()
    if before:
        made.append_generation(written(before, Finish.END), REQUEST)
    assert made.append_opening("answer") == opening
    (step,) = made.append_generation(written("Ada</answer>"), GenerationRequest(("</answer>",), 20, opening))
    assert (step.agent, step.text, step.given, step.author) == ("answer", "Ada", len(opening), Author.MODEL)
    assert made.state.done


def test_its_length_is_counted_with_a_tokenizer_and_otherwise_reported() -> None:
    counted, reported = transcript("smollm2"), transcript()
    assert counted.tokens == len(tokenizer("smollm2").encode_prompt(PROMPT)[1]) and reported.tokens == 0
    counted.append_generation(written("<think>a</think>", Finish.END, "smollm2"), REQUEST)
    reported.append_generation(written("<think>a</think>", Finish.END), REQUEST)
    assert counted.tokens == len(counted.context().ids or ()) and reported.tokens == 15


def test_a_step_of_the_path_to_the_answer_says_which_budget_ran_out() -> None:
    made = transcript()
    request = GenerationRequest(("</answer>",), 20, reason=Stop.TOKENS)
    generation = Generation("<answer>Ada</answer>", Finish.STOP, Usage(), constrained=True, log_kept=-0.25)
    (step,) = made.append_generation(generation, request)
    assert dict(step.meta) == {"constrained": True, "log_kept": -0.25, "led": "tokens"}


def test_a_stream_that_is_cut_off_is_a_generation_up_to_its_stop_string() -> None:
    events: list[object] = []
    partial = PartialGeneration(REQUEST, WEB, events.append)
    assert partial.cut_off(None, 10) is None, "nothing was streamed yet"
    for text in ("<think>\ufffd", "<think>ö</think>", "<think>ö</think><answer>Ada</answer>\n"):
        partial.on_text(text)
    assert events[:2] == [Opened("think"), Delta("think", "ö")]
    made = partial.cut_off(tokenizer("smollm2"), 10)
    assert made is not None and made.text == "<think>ö</think><answer>Ada</answer>" and made.tokens is None
    assert made.finish is Finish.LENGTH and made.usage.prompt_tokens == 10 and made.usage.completion_tokens > 5


def test_what_a_model_writes_anew_after_a_broken_call_is_not_shown_as_a_continuation() -> None:
    events: list[object] = []
    partial = PartialGeneration(REQUEST, WEB, events.append)
    partial.on_text("<think>It is the first")
    for again in ("<think>It", "<think>It is the second of two", "<think>It is the second of two</think>"):
        partial.on_text(again)
    assert "".join(event.text for event in events if isinstance(event, Delta)) == "It is the first"
    same = PartialGeneration(REQUEST, WEB, events.append)
    events.clear()
    for text in ("<think>It is the fi", "<think>It", "<think>It is the first of two"):
        same.on_text(text)
    assert "".join(event.text for event in events if isinstance(event, Delta)) == "It is the first of two"
