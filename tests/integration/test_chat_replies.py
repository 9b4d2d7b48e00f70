"""Replies of chat servers that differ: reasoning apart, contents in parts, a BOM, and usages that cannot be read."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

import pytest
from aiohttp import web

from coa.http import Patience
from coa.models.connect import connect
from coa.trajectory import FailureSite, Limits, Step, Stop, Trajectory
from support.runs import run
from support.servers import FakeServer
from support.tokenizers import tokenizer
from support.tools import searching

QUICK = Patience(attempts=2, timeout_s=5, backoff_s=0.01)
ANSWER = "<answer>Ada</answer>"


def asked(
    *replies: Any, owner: str = "somebody", listen: Any = None, limits: Limits | None = None, **options: Any
) -> Trajectory:
    """A run in which the server sends these replies one after another."""
    server = FakeServer(lambda body: ANSWER, owner=owner, tokenizer=tokenizer("smollm2"))
    server.trouble = [partial(lambda reply, request: reply, reply) for reply in replies]

    async def go() -> Trajectory:
        async with server.running() as url:
            model = await connect(url, patience=QUICK, **options)
            try:
                return await run("Who?", model, {"web_search": searching()}, "nano", listen=listen, limits=limits)
            finally:
                await model.close()

    return asyncio.run(go())


def message(content: Any = ANSWER, *, usage: Any = None, bom: str = "", **fields: Any) -> web.Response:
    choice = {"message": {"role": "assistant", "content": content, **fields}, "finish_reason": "stop"}
    used = {"prompt_tokens": 7, "completion_tokens": 3} if usage is None else usage
    text = json.dumps({"choices": [choice], "usage": used})
    return web.Response(text=bom + text, content_type="application/json")


def texts(made: Trajectory) -> list[tuple[str, str]]:
    return [(step.agent, step.text) for step in made.steps]


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
@pytest.mark.parametrize("owner", ["somebody", "vllm"])
def test_reasoning_is_what_the_thinking_agent_wrote(name: str, owner: str) -> None:
    made = asked(message(**{name: "She wrote it.\n"}), owner=owner, mode="chat")
    assert texts(made) == [("think", "She wrote it."), ("answer", "Ada")]
    assert made.stop is Stop.ANSWERED and not any(step.repairs or step.surface for step in made.steps)


def test_reasoning_that_is_sent_under_both_names_is_one_thought() -> None:
    made = asked(message(reasoning="It is Ada.", reasoning_content="It is Ada."))
    assert texts(made) == [("think", "It is Ada."), ("answer", "Ada")]


def test_tags_in_reasoning_are_words_and_not_steps() -> None:
    thought = "I could write <answer>Bob</answer> or </think> here."
    assert texts(asked(message(reasoning=thought))) == [("think", thought), ("answer", "Ada")]


def test_a_reply_that_is_only_reasoning_is_a_thought_and_the_run_goes_on() -> None:
    made = asked(message(None, reasoning="Hm."), message(reasoning="It is Ada."))
    assert [step for step in texts(made) if step[0] != "observation"] == [
        ("think", "Hm."),
        ("think", "It is Ada."),
        ("answer", "Ada"),
    ]


def test_reasoning_before_an_answer_that_the_budget_demands_is_not_part_of_the_answer() -> None:
    search = "<think>t</think>\n<web_search>who</web_search>"
    made = asked(message(search), message("Ada", reasoning="Time is up."), limits=Limits(steps=2, tool_calls=1))
    assert made.answer == "Ada" and "Time is up" not in made.to_json()


def test_streamed_reasoning_is_heard_and_read_like_that_of_a_whole_reply() -> None:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": None}]
    deltas += [{"reasoning_content": piece} for piece in ("She ", "wrote <ans", "wer> in", " it.")]
    deltas += [{"content": piece} for piece in ("<answer>", "Ada", "</answer>")]
    events: list[Any] = [{"choices": [{"delta": delta}]} for delta in deltas]
    events.append({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}})
    lines = [f"data: {json.dumps(event)}\n\n" for event in events]
    stream = web.Response(text="".join([*lines, "data: [DONE]\n\n"]), content_type="text/event-stream")
    heard: list[Any] = []
    made = asked(stream, listen=heard.append)
    assert texts(made) == [("think", "She wrote <answer> in it."), ("answer", "Ada")]
    shown = "".join(event.text for event in heard if type(event).__name__ == "Delta")
    assert shown == "She wrote <\\answer> in it.Ada" and made.usage.completion_tokens == 3
    assert [event.text for event in heard if isinstance(event, Step)] == ["She wrote <answer> in it.", "Ada"]


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "text", "text": "<answer>A"}, {"type": "text", "text": "da</answer>"}],
        [{"type": "output_text", "text": ANSWER}],
        [ANSWER],
        [{"type": "image_url", "image_url": {}}, {"type": "text", "text": ANSWER}],
    ],
)
def test_a_content_in_parts_is_their_text(content: Any) -> None:
    assert texts(asked(message(content))) == [("answer", "Ada")]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "thinking", "thinking": [{"type": "text", "text": "It is Ada."}]},
        {"type": "thinking", "thinking": "It is Ada."},
        {"type": "reasoning", "text": "It is Ada."},
    ],
)
def test_parts_of_reasoning_are_thoughts(part: Any) -> None:
    made = asked(message([part, {"type": "text", "text": ANSWER}]))
    assert texts(made) == [("think", "It is Ada."), ("answer", "Ada")]


def test_a_byte_order_mark_is_no_reason_to_refuse_an_answer() -> None:
    assert asked(message(bom="\ufeff")).answer == "Ada"
    event = {"choices": [{"delta": {"content": ANSWER}, "finish_reason": "stop"}]}
    text = f"\ufeffdata: {json.dumps(event)}\n\ndata: [DONE]\n\n"
    assert asked(web.Response(text=text, content_type="text/event-stream"), listen=lambda event: None).answer == "Ada"


def test_half_of_a_surrogate_pair_is_a_question_mark_and_infinity_is_no_number() -> None:
    made = asked(message("<think>a \ud83d b</think>"), message(usage={"prompt_tokens": float("inf")}), mode="chat")
    assert made.stop is Stop.ANSWERED and made.answer == "Ada" and made.steps[0].text == "a ? b"


BROKEN_USAGES = [
    {"prompt_tokens": -5, "completion_tokens": 3},
    {"prompt_tokens": "x", "completion_tokens": 3},
    {"prompt_tokens": 7, "completion_tokens": 1e30},
    {"prompt_tokens": None, "completion_tokens": None},
    {"prompt_tokens": True, "completion_tokens": [3]},
    "x",
    [1],
    -1,
    {},
]


@pytest.mark.parametrize("usage", BROKEN_USAGES, ids=str)
def test_a_usage_that_cannot_be_read_costs_no_run_and_is_one_warning(
    usage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    search = "<think>t</think>\n<web_search>who</web_search>"
    made = asked(message(search, usage=usage), message(usage=usage))
    assert made.stop is Stop.ANSWERED and made.usage.model_calls == 2
    assert made.usage.prompt_tokens in (0, 14) and made.usage.completion_tokens in (0, 6)
    warned = [record.getMessage() for record in caplog.records if "usage" in record.getMessage()]
    assert len(warned) == 1 and "its tokens are not counted" in warned[0]
    assert Trajectory.from_json(made.to_json()) == made


@pytest.mark.parametrize("owner", ["vllm", "sglang", "llamacpp"])
@pytest.mark.parametrize("usage", [*BROKEN_USAGES, None], ids=str)
def test_token_mode_counts_the_ids_itself_if_the_server_cannot(usage: Any, owner: str) -> None:
    ids = tokenizer("smollm2").encode([ANSWER])[0]
    choice: dict[str, Any] = {"text": ANSWER, "token_ids": ids, "logprobs": {"token_logprobs": [-0.5] * len(ids)}}
    if owner == "llamacpp":
        choice["logprobs"] = {"content": [{"id": token, "logprob": -0.5} for token in ids]}
    reply = {"choices": [{**choice, "finish_reason": "stop"}], "usage": usage}
    if owner == "sglang":
        counts = usage if isinstance(usage, dict) else {}
        meta = {**counts, "output_token_logprobs": [[-0.5, token] for token in ids], "cached_tokens": "many"}
        reply = {"text": ANSWER, "meta_info": meta}
    made = asked(web.json_response(reply), owner=owner, tokenizer=tokenizer("smollm2"))
    assert made.answer == "Ada" and made.usage.completion_tokens == len(ids) and made.usage.prompt_tokens > 10


@pytest.mark.parametrize("logprob", [None, "x", "-Infinity"])
def test_logprobs_that_are_no_numbers_are_left_out_and_the_ids_kept(logprob: Any) -> None:
    ids = tokenizer("smollm2").encode([ANSWER])[0]
    choice = {"text": ANSWER, "token_ids": ids, "logprobs": {"token_logprobs": [logprob] * len(ids)}}
    made = asked(web.json_response({"choices": [choice]}), owner="vllm", tokenizer=tokenizer("smollm2"))
    tokens = made.steps[-1].tokens
    assert made.answer == "Ada" and tokens is not None and tokens.ids == tuple(ids) and tokens.logprobs is None


@pytest.mark.parametrize(
    ("owner", "reply", "said"),
    [
        ("somebody", {"choices": [{"message": {"content": 5}}]}, "sent content that is not text: 5"),
        ("somebody", {"choices": [{"message": {"content": {"text": "x"}}}]}, "sent content that is not text"),
        ("somebody", {"choices": [{"message": "x"}]}, "answers in an unknown shape"),
        ("somebody", {"choices": [{"message": {"content": None}}]}, "sent an answer without content"),
        ("vllm", {"choices": [{"token_ids": "abc"}]}, "answers in an unknown shape"),
        ("vllm", {"choices": [{"token_ids": 5}]}, "answers in an unknown shape"),
        ("vllm", {"choices": [{"token_ids": [1], "logprobs": [1]}]}, "answers in an unknown shape"),
        ("llamacpp", {"choices": [{"logprobs": {"content": [{"logprob": 0}]}}]}, "answers in an unknown shape"),
        ("sglang", {"meta_info": {"output_token_logprobs": [[]]}}, "answers in an unknown shape"),
    ],
)
def test_a_reply_of_no_known_shape_is_one_plain_sentence(owner: str, reply: Any, said: str) -> None:
    made = asked(web.json_response(reply), owner=owner, tokenizer=tokenizer("smollm2"))
    assert made.failure is not None and made.failure.site is FailureSite.MODEL
    assert said in made.failure.message and made.failure.message.startswith("http://127.0.0.1")
    assert "Error" not in made.failure.message and "validation" not in made.failure.message
